//! Makes the code of the gRPC rival, and of the client of `serve`, from their definitions, without a protoc binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The service of rows is measured as others use it, by its published definition.
    let (rival, served) = ("proto", "../serve/proto");
    println!("cargo:rerun-if-changed={rival}/rival.proto");
    println!("cargo:rerun-if-changed={served}/lookup.proto");
    let files = protox::compile(["rival.proto", "lookup.proto"], [rival, served])?;
    // `Bytes`, so that a decoded message shares the memory that it was received in.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
