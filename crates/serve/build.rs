//! Compiles the protocol's definition, in Rust alone: to code, and to the description that reflection returns.
#![allow(clippy::print_stdout)] // That is how cargo is told.

use std::error::Error;
use std::path::PathBuf;

use protox::prost::Message;

const SERVICE: &str = "proto/open_inference.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={SERVICE}");
    let files = protox::compile([SERVICE], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("open_inference.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
