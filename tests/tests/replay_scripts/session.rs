//! A run of `vhca replay` at the other end of two pipes.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use vhca_exercises::replay::{self, ReplayError};

/// A run, driven as another process would drive it.
pub(crate) struct Session {
    script: PipeWriter,
    output: BufReader<PipeReader>,
    run: JoinHandle<Result<(), ReplayError>>,
    line: u64,
    /// Script lines behind `<`, printed lines behind `>`.
    transcript: String,
}

/// What a line led to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What it caused itself.
    pub(crate) own: Vec<Value>,
    /// What timers did before it, and earlier lines that had waited.
    pub(crate) others: Vec<Value>,
    /// The sizes afterwards.
    pub(crate) sizes: Value,
}

/// Returns `true` if a line is a SubnAdmDelete(ServiceRecord).
fn deletes_a_service(line: &Value) -> bool {
    let mad = line["mad"].as_str().unwrap_or_default();
    // Class, class version and method; and the attribute.
    mad.get(2..8) == Some("030215") && mad.get(32..36) == Some("0031")
}

impl Session {
    /// Starts a run with a configuration.
    pub(crate) fn new(config: &Value) -> Self {
        let (their_script, script) = pipe().unwrap();
        let (output, their_output) = pipe().unwrap();
        let run = thread::spawn(move || replay::run(BufReader::new(their_script), their_output));
        let mut session = Self {
            script,
            output: BufReader::new(output),
            run,
            line: 0,
            transcript: String::new(),
        };
        session.write(&json!({ "config": config }));
        session
    }

    fn write(&mut self, line: &Value) {
        self.line += 1;
        self.transcript += &format!("< {line}\n");
        writeln!(self.script, "{line}").unwrap();
    }

    /// Sends a line, and a barrier behind it.
    pub(crate) fn send(&mut self, at: u64, line: &Value) -> Outcome {
        self.write(line);
        let cause = self.line;
        self.write(&json!({ "at": at, "stats": true }));
        let mut outcome = Outcome {
            own: Vec::new(),
            others: Vec::new(),
            sizes: Value::Null,
        };
        let mut text = String::new();
        loop {
            text.clear();
            assert_ne!(self.output.read_line(&mut text).unwrap(), 0, "after {line}");
            self.transcript += &format!("> {text}");
            let mut printed: Value = serde_json::from_str(&text).unwrap();
            if printed["cause"] == self.line {
                outcome.sizes = printed["stats"].take();
                return outcome;
            }
            assert!(printed["at"].as_u64().unwrap() <= at, "{printed}");
            if printed["cause"] == cause {
                outcome.own.push(printed);
            } else {
                // Of a VF that was reset the services are deleted at the SA, over and over until it answers.
                if !deletes_a_service(&printed) {
                    outcome.others.push(printed);
                }
            }
        }
    }

    /// Ends the script. Returns its transcript.
    pub(crate) fn end(self) -> String {
        let Self {
            script,
            mut output,
            run,
            transcript,
            ..
        } = self;
        drop(script);
        let mut rest = String::new();
        output.read_line(&mut rest).unwrap();
        assert_eq!(rest, "");
        run.join().unwrap().unwrap();
        transcript
    }
}
