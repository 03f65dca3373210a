//! Goes through the lines of a file and of those that it includes, and collects the nodes.

use std::collections::BTreeMap;

use ib_wire::Guid;

use super::error::{TopologyError, TopologyProblem};
use super::statement::{GuidBase, NodeLine, PortLine, Rates, Statement, Variable};
use super::{MAX_TOPOLOGY_NODES, MAX_TOPOLOGY_PORTS, SourceText};
use crate::{HcaConfig, PortConfig, SwitchConfig};

/// Files that include one another at most.
const MAX_DEPTH: usize = 9;

/// Files that are included at most, the same one counted each time.
const MAX_INCLUDED: usize = 1000;

/// Where the automatic GUIDs of adapters and of switches begin.
const FIRST_HCA_GUID: u64 = 0x0010_0000;
const FIRST_SWITCH_GUID: u64 = 0x0020_0000;

/// A line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: usize,
    line: usize,
}

/// A file that was read.
#[derive(Debug)]
struct FileName {
    name: String,
    from: Option<Place>,
}

/// The files that were read.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<FileName>);

impl Files {
    /// An error at a place.
    pub(super) fn error(&self, at: Place, problem: TopologyProblem) -> TopologyError {
        let mut included_from = Vec::new();
        let mut file = self.0.get(at.file);
        while let Some(place) = file.and_then(|file| file.from) {
            file = self.0.get(place.file);
            let name = file.map(|file| file.name.clone()).unwrap_or_default();
            included_from.push((name, place.line));
        }
        TopologyError {
            file: self.name(at.file),
            line: at.line,
            included_from,
            problem,
        }
    }

    /// An error of the file that was read first as a whole.
    pub(super) fn error_at_large(&self, problem: TopologyProblem) -> TopologyError {
        self.error(Place { file: 0, line: 0 }, problem)
    }

    fn name(&self, file: usize) -> String {
        self.0
            .get(file)
            .map(|file| file.name.clone())
            .unwrap_or_default()
    }

    /// Whether a file is among a file and those that include it; and how many they are.
    fn chain(&self, file: usize, name: &str) -> (bool, usize) {
        let mut depth = 0;
        let mut seen = false;
        let mut next = self.0.get(file);
        while let Some(file) = next {
            depth += 1;
            seen |= file.name == name;
            next = file.from.and_then(|place| self.0.get(place.file));
        }
        (seen, depth)
    }
}

/// What a node is made from.
#[derive(Debug)]
pub(super) enum Made {
    Hca(HcaConfig),
    Switch(SwitchConfig),
}

/// A node of a file.
#[derive(Debug)]
pub(super) struct NodeEntry {
    pub(super) name: String,
    pub(super) made: Made,
    pub(super) place: Place,
    /// By port number.
    pub(super) ports: BTreeMap<u8, PortEntry>,
}

impl NodeEntry {
    pub(super) const fn port_count(&self) -> u8 {
        match &self.made {
            Made::Hca(config) => config.ports,
            Made::Switch(config) => config.ports,
        }
    }

    /// What a port supports.
    pub(super) fn supported(&self, port: u8) -> PortConfig {
        let mut config = match &self.made {
            Made::Hca(config) => config.port,
            Made::Switch(config) => config.port,
        };
        if let Some(entry) = self.ports.get(&port) {
            apply(&mut config, &entry.rates);
        }
        config
    }
}

/// A port line of a file.
#[derive(Debug)]
pub(super) struct PortEntry {
    pub(super) remote: String,
    pub(super) remote_port: u8,
    pub(super) rates: Rates,
    pub(super) place: Place,
}

/// What a file and those that it includes hold.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) files: Files,
    pub(super) nodes: Vec<NodeEntry>,
    pub(super) by_name: BTreeMap<String, usize>,
}

fn apply(config: &mut PortConfig, rates: &Rates) {
    config.widths = rates.widths.unwrap_or(config.widths);
    config.speeds = rates.speeds.unwrap_or(config.speeds);
    config.extended_speeds = rates.extended_speeds.unwrap_or(config.extended_speeds);
}

/// GUIDs that nodes take without saying so.
#[derive(Clone, Copy, Debug)]
struct GuidCounter {
    base: u64,
    next: u64,
}

impl GuidCounter {
    const fn from(base: u64) -> Self {
        Self { base, next: base }
    }

    const fn set(&mut self, to: GuidBase) {
        match to {
            GuidBase::At(guid) => *self = Self::from(guid),
            GuidBase::Behind(by) => self.next = self.base.wrapping_add(by),
        }
    }

    const fn take(&mut self, count: u64) -> Guid {
        let guid = self.next;
        self.next = guid.wrapping_add(count);
        Guid::new(guid)
    }
}

#[derive(Debug)]
struct Reader {
    files: Files,
    nodes: Vec<NodeEntry>,
    by_name: BTreeMap<String, usize>,
    ports: usize,
    switch_guids: GuidCounter,
    hca_guids: GuidCounter,
    /// For the next node.
    vendor_id: Option<u32>,
    device_id: Option<u16>,
    system_image_guid: Option<Guid>,
    /// For all nodes that follow.
    rates: Rates,
}

/// Reads a file and those that it includes.
pub(super) fn read(
    source: SourceText,
    mut include: impl FnMut(&str, &str) -> Result<SourceText, String>,
) -> Result<Content, TopologyError> {
    let mut reader = Reader {
        files: Files::default(),
        nodes: Vec::new(),
        by_name: BTreeMap::new(),
        ports: 0,
        switch_guids: GuidCounter::from(FIRST_SWITCH_GUID),
        hca_guids: GuidCounter::from(FIRST_HCA_GUID),
        vendor_id: None,
        device_id: None,
        system_image_guid: None,
        rates: Rates::default(),
    };
    reader.read_file(source, None, &mut include)?;
    if reader.nodes.is_empty() {
        return Err(reader.files.error_at_large(TopologyProblem::Empty));
    }
    Ok(Content {
        files: reader.files,
        nodes: reader.nodes,
        by_name: reader.by_name,
    })
}

type Include<'i> = &'i mut dyn FnMut(&str, &str) -> Result<SourceText, String>;

impl Reader {
    fn read_file(
        &mut self,
        source: SourceText,
        from: Option<Place>,
        include: Include<'_>,
    ) -> Result<(), TopologyError> {
        let file = self.files.0.len();
        self.files.0.push(FileName {
            name: source.name,
            from,
        });
        for (index, line) in source.text.lines().enumerate() {
            let place = Place {
                file,
                line: index + 1,
            };
            let problem = match Statement::parse(line) {
                Ok(Statement::Include(name)) => {
                    self.include(name, place, include)?;
                    continue;
                }
                Ok(Statement::Nothing) => continue,
                Ok(Statement::Node(node)) => self.begin_node(&node, place),
                Ok(Statement::Port(port)) => self.add_port(&port, place),
                Ok(Statement::Set(variable)) => {
                    self.set(variable);
                    continue;
                }
                Err(problem) => Err(problem),
            };
            problem.map_err(|problem| self.files.error(place, problem))?;
        }
        Ok(())
    }

    fn include(
        &mut self,
        name: &str,
        place: Place,
        include: Include<'_>,
    ) -> Result<(), TopologyError> {
        let error = |files: &Files, problem| Err(files.error(place, problem));
        if self.files.0.len() > MAX_INCLUDED {
            return error(&self.files, TopologyProblem::TooMany("1000 included files"));
        }
        let source = match include(name, &self.files.name(place.file)) {
            Ok(source) => source,
            Err(reason) => {
                let file = super::error::quoted(name);
                return error(&self.files, TopologyProblem::Include { file, reason });
            }
        };
        let (cycle, depth) = self.files.chain(place.file, &source.name);
        if cycle {
            return error(&self.files, TopologyProblem::IncludeCycle(source.name));
        }
        if depth >= MAX_DEPTH {
            let problem = TopologyProblem::TooMany("9 files that include one another");
            return error(&self.files, problem);
        }
        self.read_file(source, Some(place), include)
    }

    const fn set(&mut self, variable: Variable) {
        match variable {
            Variable::SwitchGuid(base) => self.switch_guids.set(base),
            Variable::HcaGuid(base) => self.hca_guids.set(base),
            Variable::VendorId(id) => self.vendor_id = Some(id),
            Variable::DeviceId(id) => self.device_id = Some(id),
            Variable::SystemImageGuid(guid) => self.system_image_guid = Some(guid),
            Variable::Rates(rates) => {
                if rates.widths.is_some() {
                    self.rates.widths = rates.widths;
                }
                if rates.speeds.is_some() {
                    self.rates.speeds = rates.speeds;
                }
                if rates.extended_speeds.is_some() {
                    self.rates.extended_speeds = rates.extended_speeds;
                }
            }
        }
    }

    fn begin_node(&mut self, line: &NodeLine<'_>, place: Place) -> Result<(), TopologyProblem> {
        if self.nodes.len() >= MAX_TOPOLOGY_NODES {
            return Err(TopologyProblem::TooMany("49151 nodes"));
        }
        self.ports += usize::from(line.ports) + 1;
        if self.ports > MAX_TOPOLOGY_PORTS {
            return Err(TopologyProblem::TooMany("262144 ports"));
        }
        let at = self.nodes.len();
        if self.by_name.insert(line.name.to_owned(), at).is_some() {
            return Err(TopologyProblem::NodeTwice(super::error::quoted(line.name)));
        }
        let description = line.description.unwrap_or(line.name);
        let made = if line.is_switch {
            Made::Switch(self.switch(line, description))
        } else {
            Made::Hca(self.hca(line, description))
        };
        self.nodes.push(NodeEntry {
            name: line.name.to_owned(),
            made,
            place,
            ports: BTreeMap::new(),
        });
        Ok(())
    }

    fn switch(&mut self, line: &NodeLine<'_>, description: &str) -> SwitchConfig {
        let mut config = SwitchConfig::new(self.switch_guids.take(1), description, line.ports);
        config.enhanced_port0 = line.enhanced_port0;
        config.vendor_id = self.vendor_id.take().unwrap_or(config.vendor_id);
        config.device_id = self.device_id.take().unwrap_or(config.device_id);
        config.system_image_guid = self.system_image_guid.take().unwrap_or(Guid::NONE);
        apply(&mut config.port, &self.rates);
        config
    }

    fn hca(&mut self, line: &NodeLine<'_>, description: &str) -> HcaConfig {
        let guid = self.hca_guids.take(u64::from(line.ports) + 1);
        let mut config = HcaConfig::new(guid, description);
        config.ports = line.ports;
        config.vendor_id = self.vendor_id.take().unwrap_or(config.vendor_id);
        config.device_id = self.device_id.take().unwrap_or(config.device_id);
        config.system_image_guid = self.system_image_guid.take().unwrap_or(Guid::NONE);
        apply(&mut config.port, &self.rates);
        config
    }

    fn add_port(&mut self, line: &PortLine<'_>, place: Place) -> Result<(), TopologyProblem> {
        let node = self
            .nodes
            .last_mut()
            .ok_or(TopologyProblem::PortWithoutNode)?;
        let most = node.port_count();
        if line.port > most {
            let found = line.port.to_string();
            return Err(TopologyProblem::Port { most, found });
        }
        if let (Made::Hca(config), Some(guid)) = (&mut node.made, line.guid) {
            let at = usize::from(line.port) - 1;
            if config.port_guids.len() <= at {
                config.port_guids.resize(at + 1, Guid::NONE);
            }
            config.port_guids[at] = guid;
        }
        let entry = PortEntry {
            remote: line.remote.to_owned(),
            remote_port: line.remote_port,
            rates: line.rates,
            place,
        };
        match node.ports.insert(line.port, entry) {
            None => Ok(()),
            Some(_) => Err(TopologyProblem::PortTwice(line.port)),
        }
    }
}
