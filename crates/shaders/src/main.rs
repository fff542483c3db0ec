//! `make shaders`: compiles the kernels' shaders and updates `crates/kernels/generated`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        eprintln!(
            "indrik-shaders compiles the shaders of crates/kernels and updates crates/kernels/generated.\n\
             It has no options. Example: make shaders"
        );
        return ExitCode::from(2);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
    let root = root.canonicalize().unwrap_or(root);
    let (generated, warnings) = match shaders::generate(&root) {
        Ok(result) => result,
        Err(errors) => {
            eprintln!("{}", errors.join("\n\n"));
            return ExitCode::FAILURE;
        }
    };
    for warning in warnings {
        eprintln!("{warning}");
    }
    match shaders::update(&root.join("generated"), &generated) {
        Ok(changed) if changed.is_empty() => println!("{} files, all up to date", generated.len()),
        Ok(changed) => {
            println!("{} of {} files updated: {}", changed.len(), generated.len(), changed.join(", "))
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
