//! Puts a digest of the sources into the module, so that a checkout sees when it is not of these (`SOURCES`).

use std::path::{Path, PathBuf};
use std::{env, fs};

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

/// CRC-32 as zlib's, which `services/whimbrel/lane.py` computes.
fn crc32(start: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    })
}

fn main() {
    let native = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo")).join("..");
    let mut found = vec![];
    for folder in ["core/src", "binding/src"] {
        files(&native.join(folder), &mut found);
    }
    found.sort();
    let mut digest = 0;
    for path in found {
        println!("cargo:rerun-if-changed={}", path.display());
        digest = crc32(digest, &fs::read(path).expect("a source"));
    }
    println!("cargo:rustc-env=WHIMBREL_SOURCES={digest:08x}");
}
