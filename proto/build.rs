//! Compiles the `.proto` files with protox: no system `protoc` is needed.

use std::path::PathBuf;

use prost::Message;

const FILES: [&str; 6] = [
    "quorate/v1/common.proto",
    "quorate/v1/log.proto",
    "quorate/v1/directory.proto",
    "quorate/internal/v1/peer.proto",
    "quorate/internal/v1/session.proto",
    "quorate/internal/v1/state.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // For server reflection.
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure().bytes(".").build_client(grpc).build_server(grpc).compile_fds(descriptors)?;
    Ok(())
}
