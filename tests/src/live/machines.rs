//! Two machines on one wire: network namespaces of this one, which a pair of `veth` joins.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{binary, wait_for};

/// Names of the interfaces, by machine.
const WIRES: [&str; 2] = ["wire0", "wire1"];

/// Two network namespaces, each held by a process, with addresses of 10.9.0.0/24.
#[derive(Debug)]
pub struct Machines {
    holders: [Child; 2],
}

impl Machines {
    /// Makes the namespaces. Returns the reason where this user may make none.
    ///
    /// # Errors
    /// The first command that failed, with its words.
    pub fn new() -> Result<Self, String> {
        let hold = || {
            let mut command = Command::new("unshare");
            let command = command.args(["--net", "sleep", "infinity"]);
            command.stdin(Stdio::null()).spawn().unwrap()
        };
        let machines = Self {
            holders: [hold(), hold()],
        };
        for holder in &machines.holders {
            let own = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).ok();
            let id = holder.id().to_string();
            let is_apart = || (own(&id)? != own("self")?).then_some(());
            wait_for(Duration::from_secs(5), is_apart).ok_or("no network namespace can be had")?;
        }
        let [near, far] = WIRES;
        let there = machines.holders[1].id().to_string();
        run(machines.on(0, "ip").args([
            "link", "add", near, "type", "veth", "peer", "name", far, "netns", &there,
        ]))?;
        for (side, wire) in WIRES.iter().enumerate() {
            let address = format!("{}/24", Self::address(side));
            for arguments in [
                &["addr", "add", &address, "dev", wire][..],
                &["link", "set", "lo", "up"],
                &["link", "set", wire, "up"],
            ] {
                run(machines.on(side, "ip").args(arguments))?;
            }
        }
        Ok(machines)
    }

    /// Returns the address of a machine.
    #[must_use]
    pub fn address(side: usize) -> String {
        format!("10.9.0.{}", side + 1)
    }

    /// Returns a command that runs a program on a machine.
    #[must_use]
    pub fn on(&self, side: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.holders[side].id().to_string();
        command.args(["--target", &target, "--net", "--", program]);
        command
    }

    /// Returns a command that runs `vhca` on a machine.
    #[must_use]
    pub fn vhca(&self, side: usize) -> Command {
        self.on(side, &binary().to_string_lossy())
    }

    /// Takes the wire of a machine down, so that packets vanish and no connection ends, or up again.
    pub fn set_wire(&self, side: usize, state: &str) {
        run(self
            .on(side, "ip")
            .args(["link", "set", WIRES[side], state]))
        .unwrap();
    }

    /// Limits the rate at which bits leave each machine, in megabits a second.
    pub fn throttle(&self, megabits: u32) {
        for (side, wire) in WIRES.iter().enumerate() {
            let rate = format!("{megabits}mbit");
            let discipline = ["tbf", "rate", &rate, "burst", "64k", "latency", "20ms"];
            let mut command = self.on(side, "tc");
            command.args(["qdisc", "replace", "dev", wire, "root"]);
            run(command.args(discipline)).unwrap();
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            // The namespace goes with its last process.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", words.trim())),
    }
}
