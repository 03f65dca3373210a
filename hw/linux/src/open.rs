//! A port that is taken from the kernel.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hca_api::AddressSpace;
use ib_vtime::{Duration, Instant, Secret};
use ib_wire::mad::{Method, MgmtClass};
use linux_abi::sysfs::Adapter;
use umad_link::RegisterRequest2;

use crate::addresses::ENTRIES;
use crate::data::Data;
use crate::error::OpenError;
use crate::files::OpenFiles;
use crate::hca::{ETHERNET, LinuxHca, LinuxHcaConfig};
use crate::mapped::MappedFiles;
use crate::sys::{self, Device};
use crate::umad::{FILES, UNSOLICITED};
use crate::worker::Worker;

/// Link layer of InfiniBand ports in sysfs.
const INFINIBAND: &str = "InfiniBand";

/// Open files that a process may usually have (`RLIMIT_NOFILE`).
const USUAL_FILES: usize = 1024;

/// The port that [`LinuxHca::open`] opens, and how.
#[derive(Debug)]
pub struct PortConfig {
    /// Name of the device, as `ibstat -l` lists it.
    pub device: String,
    /// The port.
    pub port: u8,
    /// `true` to take the CM, which `ib_cm` has while it is loaded. Otherwise no connection is established by CM.
    pub with_cm: bool,
    /// As [`LinuxHcaConfig::answer_timeout`].
    pub answer_timeout: Duration,
    /// As [`LinuxHcaConfig::secret`].
    pub secret: Secret,
    /// As [`LinuxHcaConfig::memory`].
    pub memory: Box<dyn AddressSpace>,
}

impl LinuxHca<OpenFiles> {
    /// Opens a port. All files are opened here: afterwards they are only read and written.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(now: Instant, config: PortConfig) -> Result<Self, OpenError> {
        let root = Path::new("/");
        let found = Found::new(root, &config.device, config.port)?;
        let name = format!("{}/{}", config.device, config.port);
        let unreadable = || OpenError::Unreadable(name.clone());
        let read = |file: &str| text(&found.device.join(file));
        let adapter = Adapter::read(&mut { read }).ok_or_else(unreadable)?;
        let id = |file| {
            let text = text(&found.device.join("device").join(file));
            let digits = text.as_deref().map(str::trim);
            let number =
                digits.and_then(|digits| u16::from_str_radix(digits.strip_prefix("0x")?, 16).ok());
            number.unwrap_or(0)
        };
        let pci_id = (id("vendor"), id("device"));
        let umad = found.umad(root).display().to_string();
        let mut files = Vec::with_capacity(FILES);
        for number in 0..FILES {
            let file = open_umad(&umad)?;
            if number == UNSOLICITED {
                register_receivers(&file, &name, &umad, config.with_cm)?;
            } else {
                let sender = RegisterRequest2 {
                    qpn: 1.into(),
                    ..RegisterRequest2::default()
                };
                let refused = |why| OpenError::Kernel {
                    what: format!("{umad} takes no agent"),
                    why,
                };
                sys::register(&file, sender).map_err(refused)?;
            }
            files.push(file);
        }
        let umad = files.try_into().map_err(|_| unreadable())?;
        let sysfs = open_attributes(&found.port)?;
        let config = LinuxHcaConfig {
            adapter,
            pci_id,
            answer_timeout: config.answer_timeout,
            secret: config.secret,
            memory: config.memory,
        };
        Self::new(now, OpenFiles { umad, sysfs }, config).ok_or_else(unreadable)
    }

    /// Opens the device for data by libibverbs, with memory regions in the files. To be called before there are objects: queue
    /// pairs need protection domains and completion queues that are made later.
    ///
    /// # Errors
    /// [`OpenError::NoLibrary`], [`OpenError::NoVerbs`], [`OpenError::Kernel`]; nothing has changed then.
    pub fn open_data(
        &mut self,
        device: &str,
        port: u8,
        files: MappedFiles,
    ) -> Result<(), OpenError> {
        let kernel = |why| OpenError::Kernel {
            what: format!("libibverbs cannot open {device}"),
            why,
        };
        let opened = Device::open(device).map_err(|_| OpenError::NoLibrary)?;
        let opened = opened.map_err(kernel)?;
        let opened = opened.ok_or_else(|| OpenError::NoVerbs(device.to_owned()))?;
        let attributes = opened.attributes().map_err(kernel)?;
        let worker = Worker::start().map_err(|why| OpenError::Kernel {
            what: "no thread can be started for calls that take long".to_owned(),
            why,
        })?;
        let data = Data::new(Arc::new(opened), attributes, port);
        self.set_data(data, files, worker);
        Ok(())
    }
}

/// Where a port is.
#[derive(Debug)]
struct Found {
    /// Folder of the device.
    device: PathBuf,
    /// Folder of the port.
    port: PathBuf,
    /// Name of its umad file.
    umad: String,
}

impl Found {
    /// Looks a port up below a root.
    fn new(root: &Path, device: &str, port: u8) -> Result<Self, OpenError> {
        let class = root.join("sys/class/infiniband");
        let others = names(&class);
        if !others.iter().any(|name| name == device) {
            let device = device.to_owned();
            return Err(OpenError::NoDevice { device, others });
        }
        let folder = class.join(device);
        let device = device.to_owned();
        let of_port = folder.join(format!("ports/{port}"));
        let Some(link_layer) = text(&of_port.join("link_layer")) else {
            return Err(OpenError::NoPort { device, port });
        };
        let link_layer = link_layer.trim().to_owned();
        if ![INFINIBAND, ETHERNET].contains(&&*link_layer) {
            return Err(OpenError::LinkLayer {
                device,
                port,
                link_layer,
            });
        }
        let class = root.join("sys/class/infiniband_mad");
        let is_of_port = |name: &String| {
            let is = |file, expected: &str| {
                text(&class.join(name).join(file)).is_some_and(|text| text.trim() == expected)
            };
            name.starts_with("umad") && is("ibdev", &device) && is("port", &port.to_string())
        };
        match names(&class).into_iter().find(is_of_port) {
            Some(umad) => Ok(Self {
                device: folder,
                port: of_port,
                umad,
            }),
            None => Err(OpenError::NoUmad { device, port }),
        }
    }

    fn umad(&self, root: &Path) -> PathBuf {
        root.join("dev/infiniband").join(&self.umad)
    }
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Returns the names in a folder, in order; none if there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn open_umad(path: &str) -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NONBLOCK);
    options.open(path).map_err(|why| refusal(path, why))
}

fn refusal(path: &str, why: io::Error) -> OpenError {
    match (why.kind(), why.raw_os_error()) {
        (ErrorKind::PermissionDenied, _) => OpenError::Denied(path.to_owned()),
        (_, Some(libc::EMFILE)) => OpenError::TooManyFiles(USUAL_FILES, 2 * USUAL_FILES),
        _ => OpenError::Kernel {
            what: format!("{path} cannot be opened"),
            why,
        },
    }
}

/// Registers the agents for requests of others: Report of the SA, the CM, and device management, which a target of the kernel
/// (`ib_srpt`) may have.
fn register_receivers(
    file: &File,
    device: &str,
    umad: &str,
    with_cm: bool,
) -> Result<(), OpenError> {
    let refused = |why| OpenError::Kernel {
        what: format!("{umad} takes no agent"),
        why,
    };
    let is_taken = |why: &io::Error| why.raw_os_error() == Some(libc::EINVAL);
    let register = |class, methods: &[Method]| sys::register(file, receiver(class, methods));
    match register(MgmtClass::SUBN_ADM, &[Method::REPORT]) {
        Err(why) if is_taken(&why) => {
            return Err(OpenError::ReportTaken {
                device: device.to_owned(),
                umad: umad.to_owned(),
            });
        }
        registered => registered.map_err(refused)?,
    }
    if with_cm {
        match register(MgmtClass::COM_MGT, &[Method::GET, Method::SEND]) {
            Err(why) if is_taken(&why) => return Err(OpenError::CmTaken(device.to_owned())),
            registered => registered.map_err(refused)?,
        }
    }
    match register(MgmtClass::DEV_MGT, &[Method::GET, Method::SET]) {
        Err(why) if is_taken(&why) => Ok(()),
        registered => registered.map_err(refused),
    }
}

fn receiver(class: MgmtClass, methods: &[Method]) -> RegisterRequest2 {
    let mut method_mask = [0; 2];
    for method in methods {
        let number = method.get();
        method_mask[usize::from(number / 64)] |= 1_u64 << (number % 64);
    }
    RegisterRequest2 {
        qpn: 1.into(),
        mgmt_class: class.get(),
        mgmt_class_version: class.supported_version(),
        method_mask: method_mask.map(Into::into),
        ..RegisterRequest2::default()
    }
}

/// Opens the files of a port that are read later.
fn open_attributes(port: &Path) -> Result<BTreeMap<String, File>, OpenError> {
    let mut paths: Vec<_> = [
        "cap_mask",
        "lid",
        "lid_mask_count",
        "link_layer",
        "phys_state",
        "rate",
        "sm_lid",
        "sm_sl",
        "state",
    ]
    .map(str::to_owned)
    .into();
    let is_ethernet = text(&port.join("link_layer")).is_some_and(|text| text.trim() == ETHERNET);
    let folders: &[_] = match is_ethernet {
        true => &["gids", "pkeys", "counters", "gid_attrs/types"],
        false => &["gids", "pkeys", "counters"],
    };
    for folder in folders {
        let names = names(&port.join(folder));
        // Tables of RoCE ports are long, and no more of them can be used.
        let is_beyond = |name: &String| name.parse().is_ok_and(|index: usize| index >= ENTRIES);
        let names = names.iter().filter(|name| !is_ethernet || !is_beyond(name));
        paths.extend(names.map(|name| format!("{folder}/{name}")));
    }
    let mut files = BTreeMap::new();
    for path in paths {
        let full = port.join(&path);
        match File::open(&full) {
            Ok(file) => {
                files.insert(path, file);
            }
            // Not every driver has every one.
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => return Err(refusal(&full.display().to_string(), why)),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
