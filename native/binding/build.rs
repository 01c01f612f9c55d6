//! Puts a digest of the sources into the module, so that tests see when it is not of these (`SOURCES`).

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

/// FNV-1a of 64 bits, as in `tests/unit/lane/test_build.py`.
fn digest(mut hash: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn main() {
    let native = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo")).join("..");
    let mut found = vec![];
    for folder in ["core/src", "binding/src"] {
        files(&native.join(folder), &mut found);
    }
    found.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for path in found {
        println!("cargo:rerun-if-changed={}", path.display());
        hash = digest(hash, &fs::read(path).expect("a source"));
    }
    println!("cargo:rustc-env=WHIMBREL_SOURCES={hash:016x}");
}
