//! The resolved form of a deployment: TOML that parses back to it, each value with its origin.

use std::fmt::Write as _;
use std::path::Path;

use crate::model::{Admission, Config, Eviction, Promote, Write};
use crate::options::Options;
use crate::setting::Setting;
use crate::units::{duration_text, size_text};

/// Column from which origins stand.
const ORIGIN_COLUMN: usize = 44;

impl Config {
    /// TOML of every value, each with a comment `# from <origin>`. It parses back to the same values.
    pub fn to_toml(&self) -> String {
        let mut out = Printer::default();
        self.print_daemon(&mut out);
        self.print_tables(&mut out);
        self.print_rules(&mut out);
        self.print_tenants(&mut out);
        out.text
    }

    fn print_daemon(&self, out: &mut Printer) {
        out.header("[daemon]");
        out.line("socket", &self.daemon.socket, |socket| path(socket));
        out.line("admin", &self.daemon.admin, |admin| {
            admin.map_or_else(|| quoted("off"), |at| quoted(&at.to_string()))
        });
        out.line("plugin_dirs", &self.daemon.plugin_dirs, |dirs| {
            format!("[{}]", dirs.iter().map(|dir| path(dir)).collect::<Vec<_>>().join(", "))
        });
        out.line("drain", &self.daemon.drain, |time| quoted(&duration_text(*time)));
    }

    fn print_tables(&self, out: &mut Printer) {
        for (index, tier) in self.tiers.iter().enumerate() {
            out.header("[[tier]]");
            out.line("name", &tier.name, |name| quoted(name));
            out.line("backend", &tier.backend, |backend| quoted(&backend.to_string()));
            out.line("capacity", &tier.capacity, |bytes| quoted(&size_text(*bytes)));
            out.line("required", &tier.required, bool::to_string);
            out.line("deadline", &tier.deadline, |time| quoted(&duration_text(*time)));
            if index > 0 {
                out.line("write", &tier.write, write);
            }
            for (key, time) in [("lookup_budget", &tier.lookup_budget), ("negative_ttl", &tier.negative_ttl)] {
                time.iter().for_each(|time| out.line(key, time, |time| quoted(&duration_text(*time))));
            }
            out.options(&tier.options);
        }
        for mover in &self.movers {
            out.header("[[mover]]");
            out.line("name", &mover.name, |name| quoted(name));
            out.line("backend", &mover.backend, |backend| quoted(&backend.to_string()));
            out.line("required", &mover.required, bool::to_string);
            out.options(&mover.options);
        }
    }

    fn print_rules(&self, out: &mut Printer) {
        let (policy, limits) = (&self.policy, &self.limits);
        out.header("[policy]");
        out.line("eviction", &policy.eviction, |eviction| match eviction {
            Eviction::PrefixLru => quoted("prefix-lru"),
            Eviction::S3Fifo => quoted("s3-fifo"),
            Eviction::ChainHazard => quoted("chain-hazard"),
        });
        out.line("headroom", &policy.headroom, |share| quoted(&share.to_string()));
        out.line("write", &policy.write, write);
        out.line("admission", &policy.admission, |admission| match admission {
            Admission::All => quoted("all"),
            Admission::SecondSighting => quoted("second-sighting"),
            Admission::MinDepth(depth) => format!("{{ min_depth = {depth} }}"),
        });
        out.line("promote", &policy.promote, |promote| match promote {
            Promote::OnAcquire => quoted("on-acquire"),
            Promote::AfterHits(hits) => format!("{{ after_hits = {hits} }}"),
        });
        out.line("promotion_budget", &policy.promotion_budget, |bytes| quoted(&size_text(*bytes)));
        out.line("verify_dram", &policy.verify_dram, bool::to_string);
        out.header("[limits]");
        out.line("largest_block", &limits.largest_block, |bytes| quoted(&size_text(*bytes)));
        out.line("lease", &limits.lease, |time| quoted(&duration_text(*time)));
        out.line("hold", &limits.hold, |time| quoted(&duration_text(*time)));
        out.line("hold_bytes", &limits.hold_bytes, |bytes| quoted(&size_text(*bytes)));
        out.line("quarantine", &limits.quarantine, |bytes| quoted(&size_text(*bytes)));
        out.line("background", &limits.background, |bytes| quoted(&size_text(*bytes)));
    }

    fn print_tenants(&self, out: &mut Printer) {
        for tenant in &self.tenants {
            out.header("[[tenant]]");
            out.line("name", &tenant.name, |name| quoted(name));
            out.line("uids", &tenant.uids, |uids| format!("{uids:?}"));
            for (share, tier) in tenant.quota.iter().zip(&self.tiers) {
                out.line(&format!("quota.{}", *tier.name), share, |share| quoted(&share.to_string()));
            }
        }
    }
}

#[derive(Default)]
struct Printer {
    text: String,
}

impl Printer {
    fn header(&mut self, header: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(header);
        self.text.push('\n');
    }

    fn line<T>(&mut self, key: &str, setting: &Setting<T>, text: impl Fn(&T) -> String) {
        self.pair(key, &text(&setting.value), &setting.place.origin.to_string());
    }

    fn pair(&mut self, key: &str, value: &str, origin: &str) {
        let pair = format!("{key} = {value}");
        // A file's name may hold a line break, which would end the comment. Writing to a String cannot fail.
        let origin = origin.replace(char::is_control, "?");
        let _ = writeln!(self.text, "{pair:<ORIGIN_COLUMN$} # from {origin}");
    }

    fn options(&mut self, options: &Options) {
        for (key, value, origin) in options.lines() {
            self.pair(&format!("options.{key}"), &value, &origin);
        }
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn write(write: &Write) -> String {
    match write {
        Write::Through => quoted("through"),
        Write::OnEvict => quoted("on-evict"),
        Write::AfterHits(hits) => format!("{{ after_hits = {hits} }}"),
    }
}

fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}
