//! P1, P2, P11: facts, options, `open`.

use super::super::blocks::Block;
use super::super::judge::expect;
use super::super::life::{Life, Opening, SINK};
use super::super::run::{Lab, Verdict};
use crate::backend::OpenError;
use crate::host::{CheckError, HostOpenError};
use crate::types::{Operation, Status, code};
use crate::{OpenConfig, Role};

/// An option that no backend has.
const UNKNOWN: &str = "no_such_option_of_the_kit";

pub(in super::super) fn facts_stay(lab: &Lab) -> Result<Verdict, String> {
    let again = lab.subject.facts()?;
    if again != lab.facts {
        return Err(format!("asked twice, it said {:?} and then {again:?}", lab.facts));
    }
    for (what, text) in [("name", &again.name), ("version", &again.version)] {
        if text.is_empty() || text.contains(char::is_whitespace) {
            return Err(format!("its {what} {text:?} is no word"));
        }
    }
    if again.role == Role::Mover && (again.mappable || again.persistent) {
        return Err("a mover that is mappable or persistent".to_owned());
    }
    Ok(Verdict::Held)
}

pub(in super::super) fn options_resolve_to_themselves(lab: &Lab) -> Result<Verdict, String> {
    let storage = lab.storage()?;
    let check = |text: &str| {
        lab.subject.check_options(text).map_err(|error| format!("check_options refused {text:?}: {error}"))
    };
    let resolved = check(&storage.options)?;
    let again = check(&resolved)?;
    if again != resolved {
        return Err(format!("resolved options resolve to others:\n{resolved}\nbecame\n{again}"));
    }
    Ok(Verdict::Held)
}

pub(in super::super) fn an_unknown_option_is_refused(lab: &Lab) -> Result<Verdict, String> {
    let storage = lab.storage()?;
    // In front, since the text may end inside a table.
    let text = format!("{UNKNOWN} = 1\n{}", storage.options);
    let error = match lab.subject.check_options(&text) {
        Ok(_) => return Err(format!("check_options accepted the option `{UNKNOWN}`")),
        Err(CheckError::Options(error)) => error,
        Err(error) => return Err(error.to_string()),
    };
    if !error.message.contains(UNKNOWN) {
        return Err(format!("the refusal does not name the option `{UNKNOWN}`: {}", error.message));
    }
    match text.get(error.span.clone()) {
        Some(spot) if spot.contains(UNKNOWN) => {}
        spot => return Err(format!("the refusal points at {:?} ({spot:?}), not at the option", error.span)),
    }
    match lab.subject.open(&config(lab, &text), super::super::desk::Desk::new()) {
        Err(HostOpenError::Open(OpenError::Options(_))) => Ok(Verdict::Held),
        Err(other) => Err(format!("open refused the unknown option as another kind of error: {other}")),
        Ok((live, _)) => {
            live.shutdown(lab.wait());
            Err(format!("open accepted the option `{UNKNOWN}`"))
        }
    }
}

pub(in super::super) fn options_that_are_no_toml_are_refused(lab: &Lab) -> Result<Verdict, String> {
    for text in ["= 1", "[", "a = \"", "\u{0}", "x = {\n"] {
        match lab.subject.check_options(text) {
            Err(CheckError::Options(_)) => {}
            Ok(resolved) => return Err(format!("check_options took {text:?} for {resolved:?}")),
            Err(panic) => return Err(format!("check_options of {text:?}: {panic}")),
        }
    }
    Ok(Verdict::Held)
}

pub(in super::super) fn two_tiers_do_not_meet(lab: &Lab) -> Result<Verdict, String> {
    let ((_one, one), (_two, two)) = (Life::fresh(lab)?, Life::fresh(lab)?);
    let block = Block::new(3, 73_728);
    let stored = one.put(&[block])?;
    let there = two.exists(&stored[0])?;
    // Hosts that share a backend see the same blocks on purpose.
    if !lab.facts.shared {
        expect("exists in a second tier for a block of the first", there.status, Status::MISS)?;
    }
    one.get_all(&stored)?;
    let also = two.put(&[block])?;
    two.get_all(&also)?;
    one.end()?;
    two.get_all(&also).map_err(|error| format!("after the other tier's shutdown: {error}"))?;
    two.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn storage_in_use_is_refused(lab: &Lab) -> Result<Verdict, String> {
    if lab.facts.shared {
        return Ok(Verdict::Void("shared between hosts".to_owned()));
    }
    let (storage, life) = Life::fresh(lab)?;
    match lab.subject.open(&config(lab, &storage.options), super::super::desk::Desk::new()) {
        Err(HostOpenError::Open(OpenError::Locked(_))) => {}
        Err(other) => return Err(format!("refused, but not as locked: {other}")),
        Ok((live, _)) => {
            live.shutdown(lab.wait());
            return Err("the same storage was opened twice at one time".to_owned());
        }
    }
    life.end()?;
    // And it is free again afterwards.
    Life::open(lab, &Opening::new(&storage))?.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn capabilities_are_what_calls_do(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let opened = life.opened.clone();
    if !opened.alignment.is_power_of_two() {
        return Err(format!("its alignment is {}, which is no power of two", opened.alignment));
    }
    if opened.report.is_empty() || opened.report.contains('\n') {
        return Err(format!("its report is no line: {:?}", opened.report));
    }
    if lab.facts.role == Role::Storage && opened.largest_payload == 0 {
        return Err("storage whose largest payload is 0 bytes".to_owned());
    }
    let id = 1;
    match (life.live.segment_create(id, 4 << 20), lab.facts.mappable) {
        (Ok(_), true) => expect("segment_destroy", life.live.segment_destroy(id), Status::OK)?,
        (Err(_), false) => {}
        (Ok(_), false) => return Err("not mappable, but it provides segments".to_owned()),
        (Err(error), true) => return Err(format!("mappable, but no segment: {error}")),
    }
    let ask = Operation { code: code::FILE_EXTENT, namespace_id: 1, region: SINK, ..Operation::default() };
    if !opened.file_extent {
        expect("file_extent, which it does not answer", life.one(ask)?.status, Status::UNSUPPORTED)?;
    }
    let extension = life.live.extension(u64::MAX, b"kit").err();
    expect("an extension that nobody ever named", extension.unwrap_or(Status::OK), Status::UNSUPPORTED)?;
    life.end()?;
    let (_storage, life) = Life::fresh(lab)?;
    let again = life.opened.clone();
    life.end()?;
    let figures = |o: &crate::Opened| (o.alignment, o.largest_payload, o.file_extent);
    if figures(&again) != figures(&opened) {
        return Err(format!("opened twice alike, it said {opened:?} and then {again:?}"));
    }
    Ok(Verdict::Held)
}

fn config(lab: &Lab, options: &str) -> OpenConfig {
    OpenConfig {
        tier: "kit".to_owned(),
        capacity: super::super::life::CAPACITY_BYTES,
        options: options.to_owned(),
        slots: lab.options.slots,
    }
}
