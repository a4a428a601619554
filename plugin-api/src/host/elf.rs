//! Does an ELF file export a symbol? Read without dlopen, which would run the constructors of a file that is no
//! plugin.
//!
//! Layout from the System V ABI, "Object Files" (elf(5)): a file header of 64 bytes, a table of section headers of 64
//! bytes each, `.dynsym` with symbols of 24 bytes, and the string table that it links to. 64-bit little-endian only,
//! as every machine that this host is built for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// Longest table that is read, in bytes; a plugin's are below 1 MiB.
const TABLE_BYTES_MAX: u64 = 64 << 20;
/// Most section headers that are read; more than this needs an extension of the format.
const SECTIONS_MAX: u16 = 0xff00;
const SECTION_IS_DYNSYM: u32 = 11;
const FILE_IS_SHARED_OBJECT: u16 = 3;

/// Number of this machine in the header, where it is known.
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

/// Looks for each of `symbols` among the defined dynamic symbols; answers the first that is missing. The error says
/// in words why the file is no shared object.
pub(super) fn missing(file: &File, symbols: &[&'static str]) -> Result<Option<&'static str>, String> {
    let header = read(file, 0, HEADER_BYTES as u64, "file header")?;
    check_header(&header)?;
    let table = u64_at(&header, 40);
    let (entry, count) = (u16_at(&header, 58), u16_at(&header, 60));
    if usize::from(entry) != SECTION_BYTES || count == 0 || count > SECTIONS_MAX {
        return Err("it has no section headers".to_owned());
    }
    let sections = read(file, table, u64::from(count) * SECTION_BYTES as u64, "section headers")?;
    let section = |index: u32| sections.chunks_exact(SECTION_BYTES).nth(index as usize);
    let Some(found) = sections.chunks_exact(SECTION_BYTES).find(|s| u32_at(s, 4) == SECTION_IS_DYNSYM) else {
        return Ok(symbols.first().copied());
    };
    let symbol_table = read(file, u64_at(found, 24), u64_at(found, 32), "dynamic symbols")?;
    let names = section(u32_at(found, 40)).ok_or("its dynamic symbols have no names")?;
    let names = read(file, u64_at(names, 24), u64_at(names, 32), "names of dynamic symbols")?;
    let exported = |wanted: &str| {
        symbol_table.chunks_exact(SYMBOL_BYTES).any(|symbol| {
            let is_defined = u16_at(symbol, 6) != 0;
            let name = names.get(u32_at(symbol, 0) as usize..).unwrap_or(&[]);
            is_defined && name.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        })
    };
    Ok(symbols.iter().copied().find(|symbol| !exported(symbol)))
}

fn check_header(header: &[u8]) -> Result<(), String> {
    if header[..4] != *b"\x7fELF" {
        return Err("it is not an ELF file".to_owned());
    }
    if header[4..6] != [2, 1] {
        return Err("it is not a 64-bit little-endian ELF file".to_owned());
    }
    if u16_at(header, 16) != FILE_IS_SHARED_OBJECT {
        return Err("it is an ELF file, but no shared object".to_owned());
    }
    match (u16_at(header, 18), MACHINE) {
        (machine, Some(own)) if machine != own => {
            Err(format!("it is built for another machine (ELF machine {machine}, this one is {own})"))
        }
        _ => Ok(()),
    }
}

fn read(file: &File, offset: u64, length: u64, what: &str) -> Result<Vec<u8>, String> {
    let end = file.metadata().map_err(|e| format!("its {what} cannot be read: {e}"))?.len();
    if length > TABLE_BYTES_MAX || offset.checked_add(length).is_none_or(|needed| needed > end) {
        return Err(format!("it is too short: its {what} would end behind its {end} bytes"));
    }
    let mut bytes = vec![0; length as usize];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(bytes),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err("it is being changed".to_owned()),
        Err(e) => Err(format!("its {what} cannot be read: {e}")),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
