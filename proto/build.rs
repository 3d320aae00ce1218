//! Compiles the protos without protoc: protox is a protobuf compiler in Rust.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let files = [
        "gardener/watchdog/stream/v1/stream.proto",
        "gardener/watchdog/probe/v1/probe.proto",
        "gardener/watchdog/scaling/v1/scaling.proto",
        "gardener/watchdog/weeder/v1/weeder.proto",
    ];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut compiler = protox::Compiler::new([&root])?;
    // Reflection serves the comments, so that `grpcurl describe` explains every field.
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(files)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        Path::new(&out).join("watchdog.binpb"),
        compiler.encode_file_descriptor_set(),
    )?;
    let mut config = tonic_prost_build::Config::new();
    // Messages know their names, by which reflection finds their fields.
    config.enable_type_names();
    tonic_prost_build::configure().compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}
