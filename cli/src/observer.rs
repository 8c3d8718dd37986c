//! `quorate observer`.

use std::process::ExitCode;

use crate::args::ProcessArgs;
use crate::fail::Fail;

pub fn run(_args: &ProcessArgs) -> Result<ExitCode, Fail> {
    Err(Fail::error("observers are not part of this build"))
}
