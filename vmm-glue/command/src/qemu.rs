//! Arguments by which QEMU gives a guest a VF.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;
use vhca_diagnosis::quoted;

/// A guest with VFs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QemuGuest {
    /// Its memory in MiB.
    pub(crate) memory_mib: u32,
    /// The sockets of its VFs.
    pub(crate) sockets: Vec<PathBuf>,
}

/// What QEMU, 10.1 or later, is to be given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct QemuArgs {
    /// The arguments.
    pub(crate) args: Vec<String>,
}

impl QemuGuest {
    /// The arguments for it. The machine's memory is in a memfd that QEMU shares: without, the device would not
    /// see what the guest writes.
    #[must_use]
    pub(crate) fn arguments(&self) -> QemuArgs {
        let memory = self.memory_mib;
        let mut args = vec![
            "-machine".to_owned(),
            "q35,memory-backend=ram".to_owned(),
            "-m".to_owned(),
            format!("{memory}M"),
            "-object".to_owned(),
            format!("memory-backend-memfd,id=ram,size={memory}M,share=on"),
        ];
        for socket in &self.sockets {
            let device = json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": socket.to_string_lossy() },
            });
            args.extend(["-device".to_owned(), device.to_string()]);
        }
        QemuArgs { args }
    }
}

impl core::fmt::Display for QemuArgs {
    /// As a shell takes them: an option with its value on each line.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (place, pair) in self.args.chunks(2).enumerate() {
            f.write_str(if place == 0 { "" } else { " \\\n" })?;
            for (place, argument) in pair.iter().enumerate() {
                f.write_str(if place == 0 { "" } else { " " })?;
                f.write_str(&quoted(argument))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_arguments_back_whatever_is_in_the_path() {
        let guest = QemuGuest {
            memory_mib: 512,
            sockets: vec![PathBuf::from("/run/it's \"here\"/a b-vf1.sock")],
        };
        let arguments = guest.arguments();
        let script = format!("printf '%s\\n' {arguments}");
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        assert_eq!(lines.lines().collect::<Vec<_>>(), arguments.args);
        let device: serde_json::Value = serde_json::from_str(&arguments.args[7]).unwrap();
        assert_eq!(device["socket"]["path"], "/run/it's \"here\"/a b-vf1.sock");
    }

    #[test]
    fn memory_is_shared_and_each_vf_is_a_device() {
        let guest = QemuGuest {
            memory_mib: 2048,
            sockets: vec![PathBuf::from("/a"), PathBuf::from("/b")],
        };
        let text = guest.arguments().to_string();
        assert!(text.contains("-object memory-backend-memfd,id=ram,size=2048M,share=on \\\n"));
        assert_eq!(text.matches("vfio-user-pci").count(), 2);
    }
}
