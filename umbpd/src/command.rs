//! What the program does with its command line.

use std::process::ExitCode;

use umbp_config::{Config, ConfigErrors, Source};

use crate::args::{Args, Command};
use crate::check;
use crate::daemon::{Daemon, StartError, StartOptions};
use crate::loader::chain;
use crate::process;

/// Exit status of a config that is refused, as in sysexits' EX_CONFIG.
const EXIT_CONFIG: u8 = 78;

/// Runs the program.
pub fn run(args: Args) -> ExitCode {
    process::init_log();
    match args.command {
        Some(Command::Check { file }) => print(&Source::of_process(Some(file), None), Some(check_plugins)),
        None => {
            let socket = args.socket.map(|path| path.to_string_lossy().into_owned());
            let source = Source::of_process(args.config, socket);
            if args.print_config { print(&source, None) } else { serve(&source) }
        }
    }
}

type Check = fn(Config) -> Result<String, ConfigErrors>;

fn check_plugins(config: Config) -> Result<String, ConfigErrors> {
    check::check(config, std::env::current_exe().ok().as_deref())
}

/// Prints the resolved form, where asked with what plugins say of their options.
fn print(source: &Source, check: Option<Check>) -> ExitCode {
    let resolved = Config::load(source).and_then(|config| match check {
        Some(check) => check(config),
        None => Ok(config.to_toml()),
    });
    match resolved {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(errors) => refuse_config(errors),
    }
}

fn serve(source: &Source) -> ExitCode {
    process::prepare();
    if let Err(text) = process::check_open_files() {
        return refuse(&text);
    }
    let config = match Config::load(source) {
        Ok(config) => config,
        Err(errors) => return refuse_config(errors),
    };
    config.notices().iter().for_each(|notice| tracing::warn!("{notice}"));
    let origin = source.file.as_ref().map_or("embedded default".to_owned(), |file| file.display().to_string());
    let daemon = match Daemon::start(config, &StartOptions::new(origin)) {
        Ok(daemon) => daemon,
        Err(StartError::Config(errors)) => return refuse_config(errors),
        Err(error) => return refuse(&chain(&error)),
    };
    eprintln!("{}", daemon.greeting());
    match daemon.run(told_to_stop()) {
        Ok(ended) if ended.tiers_left > 0 => {
            tracing::warn!("{} plugins did not return in time; the process ends without them", ended.tiers_left);
            // A plugin's thread still runs: no destructor may run beside it.
            // SAFETY: ends the process at once; the socket is removed, and nothing of ours is left to write.
            unsafe { libc::_exit(0) }
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => refuse(&chain(&error)),
    }
}

/// SIGTERM or SIGINT.
async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!("cannot watch for signals: {error}; a signal ends the process without draining");
            std::future::pending().await
        }
    }
}

fn refuse_config(errors: ConfigErrors) -> ExitCode {
    eprintln!("{:?}", miette::Report::new(errors));
    ExitCode::from(EXIT_CONFIG)
}

fn refuse(text: &str) -> ExitCode {
    eprintln!("umbpd: {text}");
    ExitCode::FAILURE
}
