//! Messages and exit statuses of commands that fail.

use std::io::{self, Write};
use std::process::ExitCode;

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;
use vhca_control::RemoteError;
use vhca_exercises::replay::ReplayError;
use vhca_service::serve::{OptionsError, OptionsFileError, ServeError};

use hca_vfio::VfioError;

use crate::cli::WrongWords;
use crate::lab::TieError;
use crate::programs::ProgramError;

/// Exit status for wrong arguments, as clap has it, for options that are wrong, for a function that VFIO does not give, and for a wrong line of a script.
const USAGE: u8 = 2;

/// Exit status for a service that does not answer.
const SILENT: u8 = 4;

/// Exit status for a program that is there and cannot be run, as shells have it.
const CANNOT_RUN: u8 = 126;

/// Exit status for a program that is not there, as shells have it.
const NOT_FOUND: u8 = 127;

/// Prints on stderr why a command failed. Returns its exit status. If the reader of the output is gone, the process ends by SIGPIPE,
/// as other programs do.
pub(crate) fn end(error: &anyhow::Error) -> ExitCode {
    if is_unread(error) {
        // If that failed, the message would come instead.
        let _ = emulate_default_handler(SIGPIPE);
    }
    // Without stderr there is nothing to be said.
    let _ = writeln!(io::stderr(), "vhca: {error:#}");
    ExitCode::from(status(error))
}

fn status(error: &anyhow::Error) -> u8 {
    let started = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ProgramError::Start(_, source)), _) | (_, Some(TieError::Start(_, source))) => {
            Some(source)
        }
        _ => None,
    };
    if matches!(
        error.downcast_ref(),
        Some(ProgramError::NotInstalled(..) | ProgramError::NotInPath(..))
    ) {
        return NOT_FOUND;
    }
    if let Some(RemoteError::Silent(_)) = error.downcast_ref() {
        return SILENT;
    }
    if let Some(source) = started {
        return match source.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => CANNOT_RUN,
        };
    }
    let is_usage = error.is::<OptionsError>()
        || error.is::<WrongWords>()
        || error.is::<VfioError>()
        || matches!(error.downcast_ref(), Some(ProgramError::DeviceName(..)))
        || matches!(error.downcast_ref(), Some(OptionsFileError::Line { .. }))
        || matches!(error.downcast_ref(), Some(RemoteError::Refused(refusal)) if refusal.is_contradiction())
        || error.downcast_ref().is_some_and(ServeError::is_of_options)
        || matches!(error.downcast_ref(), Some(ReplayError::Script { .. }));
    if is_usage { USAGE } else { 1 }
}

/// Returns `true` if the reader of the output is gone. A service that ended is another matter.
fn is_unread(error: &anyhow::Error) -> bool {
    let is_broken = |cause: &(dyn core::error::Error + 'static)| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    };
    !error.is::<ProgramError>() && error.chain().any(is_broken)
}
