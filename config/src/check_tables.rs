//! Checks of the named tables: tiers, movers, tenants.

use crate::check::Checker;
use crate::defaults::{self, CAPACITY_MIN_BYTES, LOOKUP_BUDGET_MAX, MOVERS_MAX, TENANTS_MAX, TIERS_MAX, UIDS_MAX};
use crate::error::{Problem, Remedy, closest};
use crate::model::{Mover, Tenant, Tier, Write};
use crate::options::Options;
use crate::raw::{Entry, Fields, Raw, Value};
use crate::read::{self, Read};
use crate::schema::Section;
use crate::setting::{Place, Setting};
use crate::units::Share;
use std::time::Duration;

const DEADLINE_MIN: Duration = Duration::from_millis(1);
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// The named tables of a deployment.
pub(crate) struct Tables<'a> {
    fields: &'a [Fields],
}

impl<'a> Tables<'a> {
    pub(crate) fn new(fields: &'a [Fields]) -> Self {
        Self { fields }
    }

    fn of(&self, section: Section) -> impl Iterator<Item = &'a Fields> + use<'a> {
        self.fields.iter().filter(move |table| table.section == section)
    }

    /// `write` is when a tier gets its copy that does not say so itself.
    pub(crate) fn tiers(&self, checker: &mut Checker<'_>, write: &Setting<Write>) -> Vec<Tier> {
        let mut tiers: Vec<Tier> = Vec::new();
        if self.of(Section::Tier).next().is_none() {
            let remedy = "add a [[tier]] with name, backend and capacity, such as \"dram\", \"dram\", \"8GiB\"";
            let place = Place { span: Some(0..0), ..checker.text.place(0..0) };
            checker.fail("tier".to_owned(), "", (Problem::Missing, Remedy::text(remedy)), &place);
        }
        self.too_many(checker, Section::Tier, TIERS_MAX);
        for (index, fields) in self.of(Section::Tier).enumerate() {
            let capacity = |raw: &Raw| read::size_from(raw, CAPACITY_MIN_BYTES, u64::MAX);
            let deadline = |raw: &Raw| read::duration_from(raw, DEADLINE_MIN, DEADLINE_MAX);
            let name = checker.need(fields, "name", "\"dram\"", read::name);
            let backend = checker.need(fields, "backend", "\"dram\"", read::backend);
            let capacity = checker.need(fields, "capacity", "\"8GiB\"", capacity);
            let required = checker.take_or(fields, "required", true, |raw| required(raw, index));
            let deadline = checker.take_or(fields, "deadline", defaults::TIER_DEADLINE, deadline);
            let own = checker.take(fields, "write", |raw| write_below(raw, index));
            let write = own.unwrap_or_else(|| write.clone());
            let budget = |raw: &Raw| read::duration_from(raw, Duration::ZERO, LOOKUP_BUDGET_MAX);
            let lookup_budget = checker.take(fields, "lookup_budget", budget);
            let ttl = |raw: &Raw| read::duration_from(raw, Duration::ZERO, DEADLINE_MAX);
            let negative_ttl = checker.take(fields, "negative_ttl", ttl);
            let options = options(checker, fields);
            let (Some(name), Some(backend), Some(capacity)) = (name, backend, capacity) else { continue };
            twice(checker, fields, &name, tiers.iter().map(|tier| &tier.name));
            tiers.push(Tier {
                name,
                backend,
                capacity,
                required,
                deadline,
                write,
                lookup_budget,
                negative_ttl,
                options,
            });
        }
        tiers
    }

    pub(crate) fn movers(&self, checker: &mut Checker<'_>, tiers: &[Tier]) -> Vec<Mover> {
        let mut movers: Vec<Mover> = Vec::new();
        self.too_many(checker, Section::Mover, MOVERS_MAX);
        for fields in self.of(Section::Mover) {
            let name = checker.need(fields, "name", "\"gpu\"", read::name);
            let backend = checker.need(fields, "backend", "\"gpu-direct\"", read::backend);
            let required = checker.take_or(fields, "required", false, read::boolean);
            let options = options(checker, fields);
            let (Some(name), Some(backend)) = (name, backend) else { continue };
            let names = tiers.iter().map(|tier| &tier.name).chain(movers.iter().map(|mover| &mover.name));
            twice(checker, fields, &name, names);
            movers.push(Mover { name, backend, required, options });
        }
        movers
    }

    pub(crate) fn tenants(&self, checker: &mut Checker<'_>, tiers: &[Tier], own_uid: u32) -> Vec<Tenant> {
        let mut tenants: Vec<Tenant> = Vec::new();
        self.too_many(checker, Section::Tenant, TENANTS_MAX);
        for fields in self.of(Section::Tenant) {
            let name = checker.need(fields, "name", "\"default\"", read::name);
            let mut uids = checker.take_or(fields, "uids", Vec::new(), |raw| read::uids(raw, UIDS_MAX));
            if uids.is_empty() {
                uids.value.push(own_uid);
            }
            let quota = self.quota(checker, fields, tiers);
            let Some(name) = name else { continue };
            twice(checker, fields, &name, tenants.iter().map(|tenant| &tenant.name));
            tenants.push(Tenant { name, uids, quota });
        }
        tenants
    }

    /// One share per tier. The sum over the tenants may exceed the tier: quotas bound, they reserve nothing.
    fn quota(&self, checker: &mut Checker<'_>, fields: &Fields, tiers: &[Tier]) -> Vec<Setting<Share>> {
        let mut quota: Vec<_> = tiers.iter().map(|_| Setting::default_of(defaults::QUOTA)).collect();
        let Some(raw) = fields.values.get("quota") else { return quota };
        let path = format!("{}.quota", fields.path);
        let Value::Table(entries) = &raw.value else {
            let problem = Problem::WrongType { expected: "a table of shares", found: raw.value.kind() };
            let remedy = Remedy::text("write a share for each tier's name, such as { dram = \"50%\" }");
            checker.fail(path, &raw.written, (problem, remedy), &raw.place);
            return quota;
        };
        let names: Vec<&str> = self.of(Section::Tier).filter_map(Fields::name).collect();
        for Entry { key, key_place, raw } in entries {
            let path = format!("{path}.{key}");
            if !names.contains(&key.as_str()) {
                let remedy = closest(key, names.iter().copied()).map_or_else(
                    || Remedy::text(format!("name one of the tiers: {}", names.join(", "))),
                    Remedy::did_you_mean,
                );
                checker.fail(path, "", (Problem::Impossible("no tier has this name".to_owned()), remedy), key_place);
                continue;
            }
            let Some(index) = tiers.iter().position(|tier| *tier.name == *key) else { continue };
            match quota_share(raw, *tiers[index].capacity, index) {
                Ok(value) => quota[index] = Setting { value, place: raw.place.clone() },
                Err(problem) => checker.fail(path, &raw.written, problem, &raw.place),
            }
        }
        quota
    }

    fn too_many(&self, checker: &mut Checker<'_>, section: Section, most: usize) {
        if let Some(fields) = self.of(section).nth(most) {
            let name = section.name();
            let problem = Problem::Impossible(format!("more than {most} [[{name}]] tables"));
            checker.fail(fields.path.clone(), "", (problem, Remedy::text("remove it")), &fields.header);
        }
    }
}

fn quota_share(raw: &Raw, capacity: u64, tier: usize) -> Read<Share> {
    let share = read::share(raw, 100)?;
    if share.of(capacity) > capacity {
        return read::impossible("more than the tier's capacity", "write at most \"100%\"");
    }
    if tier == 0 && share.of(capacity) == 0 {
        return read::impossible("nothing of the first tier: the tenant could store nothing", "write more than 0");
    }
    Ok(share)
}

fn required(raw: &Raw, index: usize) -> Read<bool> {
    match read::boolean(raw)? {
        false if index == 0 => {
            read::impossible("the first tier is always required", "remove the key, or move another tier to the top")
        }
        required => Ok(required),
    }
}

fn write_below(raw: &Raw, index: usize) -> Read<Write> {
    if index == 0 {
        let remedy = "remove the key, or set it on a tier below, or on all of them as policy.write";
        return read::impossible("the first tier is written by engines", remedy);
    }
    read::write(raw)
}

fn options(checker: &mut Checker<'_>, fields: &Fields) -> Options {
    let Some(raw) = fields.values.get("options") else { return Options::none() };
    Options::of(raw, checker.text).unwrap_or_else(|| {
        let problem = Problem::WrongType { expected: "a table", found: raw.value.kind() };
        let remedy = Remedy::text(format!("write [{}.options] above the options", fields.section.name()));
        checker.fail(format!("{}.options", fields.path), &raw.written, (problem, remedy), &raw.place);
        Options::none()
    })
}

fn twice<'n>(
    checker: &mut Checker<'_>,
    fields: &Fields,
    name: &Setting<String>,
    mut others: impl Iterator<Item = &'n Setting<String>>,
) {
    let Some(first) = others.find(|other| other.value == name.value) else { return };
    let problem = Problem::Twice(format!("this name is taken at {}", first.place.origin));
    let key = format!("{}.name", fields.section.name());
    checker.fail(key, &format!("\"{}\"", **name), (problem, Remedy::text("give it another name")), &name.place);
}
