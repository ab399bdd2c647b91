//! Compiles the services' definitions, in Rust alone: to code, and to the description that reflection returns.
#![allow(clippy::print_stdout)] // That is how cargo is told.

use std::error::Error;
use std::path::PathBuf;

use protox::prost::Message;

const SERVICES: [&str; 2] = ["proto/open_inference.proto", "proto/lookup.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    SERVICES.iter().for_each(|service| println!("cargo:rerun-if-changed={service}"));
    let files = protox::compile(SERVICES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("services.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
