//! Makes the code of the gRPC rival from `proto/rival.proto`, without a protoc binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/rival.proto");
    let files = protox::compile(["rival.proto"], ["proto"])?;
    // `Bytes`, so that a decoded message shares the memory that it was received in.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
