//! `umbp bench`: how fast the copy path is, as a ratio to a plain memcpy of the same runs on the same machine; how fast
//! loads from a lower tier are, beside a bare read of the disk ([`load`]); what a remote tier adds to its client library
//! ([`remote`]); and what a million blocks cost ([`scale`]).

mod load;
mod remote;
mod scale;

use std::path::Path;

use miette::{IntoDiagnostic, WrapErr};
use umbp_client::Options;
use umbp_client::bench::{CopyReport, CopySettings, Measured, copy};

/// Most measured rounds.
const ROUNDS_MAX: u64 = 1000;

/// `umbp bench`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Stores and loads through the daemon, against a plain scattered memcpy of the same runs. The daemon should have
    /// a DRAM tier alone, larger than the set, and no other work.
    Copy(Copy),
    /// Loads blocks that a lower tier alone has, by one client and by several at once, beside a bare read of the disk. The
    /// daemon's first tier should be much smaller than the set.
    Load(load::Load),
    /// Stores to a remote tier's server and loads from it, through the plugin and by the client library in a bare loop.
    /// Needs no daemon, and leaves nothing behind.
    Remote(remote::Remote),
    /// Fills the daemon with small blocks: memory per block, and lookups, idle and while blocks are evicted. The
    /// daemon's first tier should hold the blocks and little more, and have no other work.
    Scale(scale::Scale),
}

/// `umbp bench copy`
#[derive(Debug, clap::Args)]
pub(crate) struct Copy {
    /// Pieces of a block [default: two shapes, 64 of 32 KiB and 160 of 4 KiB].
    #[arg(long, value_name = "N", requires = "run_bytes", value_parser = clap::value_parser!(u64).range(1..=4096))]
    runs: Option<u64>,
    /// Bytes of a piece, such as 4KiB.
    #[arg(long, value_name = "SIZE", requires = "runs", value_parser = crate::size::parse)]
    run_bytes: Option<u64>,
    /// Bytes of all blocks [default: four times the last cache, 64 to 512 MiB].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    set_bytes: Option<u64>,
    /// Measured rounds, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,
    /// Threads that copy, and threads of the plain memcpy.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Prints a JSON array with an object for each shape, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(command: &Command, socket: &Path) -> miette::Result<()> {
    match command {
        Command::Copy(arguments) => run_copy(arguments, socket),
        Command::Load(arguments) => load::run(arguments, socket),
        Command::Remote(arguments) => remote::run(arguments),
        Command::Scale(arguments) => scale::run(arguments, socket),
    }
}

fn run_copy(arguments: &Copy, socket: &Path) -> miette::Result<()> {
    let options = Options::new(socket, None);
    let (rounds, threads) = (arguments.rounds as usize, arguments.threads as usize);
    let shapes = match (arguments.runs, arguments.run_bytes) {
        (Some(runs), Some(run_bytes)) => {
            vec![CopySettings { runs: runs as usize, run_bytes: run_bytes as usize, set_bytes: None, rounds, threads }]
        }
        _ => CopySettings::shapes(rounds, threads).to_vec(),
    };
    let mut reports = Vec::new();
    for shape in shapes {
        let settings = CopySettings { set_bytes: arguments.set_bytes, ..shape };
        let report = copy(&options, &settings).into_diagnostic().wrap_err("measure the copy path")?;
        if !arguments.json {
            print!("{}", table(&report));
        }
        reports.push(report.to_json());
    }
    if arguments.json {
        println!("{}", serde_json::Value::Array(reports));
    }
    Ok(())
}

fn table(report: &CopyReport) -> String {
    let CopySettings { runs, run_bytes, threads, rounds, .. } = report.settings;
    let mut out = format!(
        "{} blocks of {runs} x {run_bytes} bytes, {threads} copy threads, median of {rounds} rounds\n\
         direction  checksum     GB/s  memcpy GB/s  ratio   best\n",
        report.blocks
    );
    for line in &report.lines {
        let checksum = if line.checksum { "on" } else { "off" };
        let Measured { direction, gbps, memcpy_gbps: memcpy, ratio, best_ratio: best, .. } = line;
        out += &format!("{direction:<9}  {checksum:<8}  {gbps:>7.2}  {memcpy:>11.2}  {ratio:>5.2}  {best:>5.2}\n");
    }
    let load = |checksum| report.lines.iter().find(|line| line.direction == "load" && line.checksum == checksum);
    if let (Some(off), Some(on)) = (load(false), load(true)) {
        out += &format!("the checksum's share of a load: {:.0} %\n", 100.0 * (1.0 - on.ratio / off.ratio));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_report_is_shown() {
        let settings = CopySettings { runs: 160, run_bytes: 4096, set_bytes: Some(1 << 28), rounds: 9, threads: 2 };
        let line = |direction, checksum, ratio| Measured {
            direction,
            checksum,
            gbps: 8.1,
            memcpy_gbps: 9.0,
            ratio,
            best_ratio: 0.97,
        };
        let lines = vec![line("store", false, 0.91), line("load", false, 0.9), line("load", true, 0.81)];
        let shown = table(&CopyReport { settings, blocks: 409, cache_bytes: 1 << 25, lines });
        for part in ["409 blocks of 160 x 4096 bytes", "store      off", "0.91", "load       on", "0.81", "load: 10 %"]
        {
            assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
        }
    }
}
