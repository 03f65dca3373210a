//! Services whose fabrics trunks join, as processes: one subnet under one subnet manager.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use vhca_tests::effort::full;
use vhca_tests::live::mpi::exchange_between;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim, wait_for};

/// Returns the arguments of a service of two hosts with two VFs each, with a port of its first switch at the other's.
fn arguments<'a>(site: &'a str, sm: &'a str, trunk: &'a str) -> Vec<&'a str> {
    let trunk = ["--trunk", trunk, "--site", site, "--sm", sm];
    [&trunk[..], &["--vfs", "2", "--verbs"]].concat()
}

/// Returns a port that is free until a service has it: the kernel gives it to no other in between.
fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

/// A service with a subnet manager, and one that connects to it.
struct Sites {
    north: Lab,
    south: Lab,
    trunk: String,
    /// The folder of its socket.
    _folder: Option<TempDir>,
}

impl Sites {
    fn new() -> Self {
        Self::under("lite")
    }

    fn under(sm: &str) -> Self {
        Self::with_networks(sm, ["127.77.0.0/16"; 2])
    }

    /// Returns two sites whose VFs have addresses of these networks.
    fn with_networks(sm: &str, [northern, southern]: [&str; 2]) -> Self {
        let port = free_port();
        let listen = format!("S1/5=listen:tcp:127.0.0.1:{port},peer=fabric");
        let network = |network| ["--verbs-network", network];
        let north = arguments("north", sm, &listen);
        let north = Lab::serve(&[&north[..], &network(northern)].concat());
        let trunk = format!("S2/5=tcp:localhost:{port}");
        let south = arguments("south", "none", &trunk);
        let south = Lab::serve(&[&south[..], &network(southern)].concat());
        Self {
            north,
            south,
            trunk,
            _folder: None,
        }
    }

    /// A service without a subnet manager that listens, and one with a subnet manager that connects to it.
    fn managed_from_the_south(peer: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("trunk");
        let listen = format!("S1=listen:unix:{}{peer}", socket.display());
        let north = Lab::serve(&arguments("north", "none", &listen));
        let trunk = format!("S2/5=unix:{}", socket.display());
        let south = Lab::serve(&arguments("south", "lite", &trunk));
        Self {
            north,
            south,
            trunk,
            _folder: Some(folder),
        }
    }

    fn restart_south(&mut self) {
        self.south = Lab::serve(&arguments("south", "none", &self.trunk));
    }

    /// Returns the GUIDs of the VFs of the southern site, once all are up.
    fn southern_guids(&self) -> BTreeSet<String> {
        let shown = self.south.told(&["show", "vfs", "--wait-up"]);
        let rows = shown.lines().filter(|line| line.starts_with('H')).skip(1);
        let guids = rows.filter_map(|row| row.split_whitespace().nth(3));
        guids.map(str::to_owned).collect()
    }
}

/// Returns the nodes that `ibnetdiscover` finds, by GUID.
fn nodes(lab: &Lab, from: &str) -> BTreeSet<String> {
    let found = lab.tool(Shim::Vhca, from, &["ibnetdiscover"]);
    let lines = found.lines();
    let nodes = lines.filter(|line| line.starts_with("Ca") || line.starts_with("Switch"));
    nodes
        .filter_map(|line| Some(line.split('"').nth(1)?.to_owned()))
        .collect()
}

/// Runs `ibdiagnet` on a node of one site. It must find all nodes of both sites and no error.
fn diagnose(lab: &Lab, from: &str) {
    let folder = lab.dir().to_str().unwrap();
    let report = lab.tool(Shim::Vhca, from, &["ibdiagnet", "-o", folder]);
    let all = "16 nodes (4 Switches & 12 CA-s) discovered";
    assert!(report.contains(all), "{report}");
    assert!(report.contains("-I- Done."), "{report}");
    assert!(!report.contains("-E-"), "{report}");
}

/// Runs a program at a VF of one site as the server, and at one of another site as its client.
fn run_between(server: &Lab, client: &Lab, program: &[&str]) {
    // Other tests run such programs at the same time.
    let port = free_port().to_string();
    let program = [program, &["-p", &port]].concat();
    let mut serving = server.on(Shim::Vhca, "H1-1/1", &program);
    let mut serving = serving.stdout(Stdio::null()).spawn().unwrap();
    let asking = [&program[..], &["127.0.0.1"]].concat();
    let succeeds = || {
        let mut asking = client.on(Shim::Vhca, "H2-1/1", &asking);
        asking.output().unwrap().status.success().then_some(())
    };
    let succeeded = wait_for(PATIENCE, succeeds);
    assert!(succeeded.is_some(), "{program:?}");
    assert!(serving.wait().unwrap().success(), "{program:?}");
}

#[test]
fn two_services_are_one_subnet_for_stock_programs() {
    let sites = Sites::new();
    assert_eq!(sites.southern_guids().len(), 8);
    let whole = nodes(&sites.north, "H1-1");
    assert_eq!(whole.len(), 16, "{whole:?}");
    assert_eq!(nodes(&sites.south, "H2-2"), whole);
    let listed = sites.north.tool(Shim::Vhca, "H1-1", &["ibnetdiscover"]);
    for name in ["H1-1@north", "H1-1@south", "S2@north", "S2@south"] {
        assert!(listed.contains(&format!("\"{name}\"")), "{name}: {listed}");
    }
    let why = sites.south.told(&["why", "H1-1@south/1"]);
    assert!(why.starts_with("H1-1/1 port 1: up"), "{why}");
    for program in [
        &["ibv_rc_pingpong", "-g", "0", "-n", "200"][..],
        &["ib_write_bw", "-n", "100", "-s", "65536"],
        &["ib_read_bw", "-n", "100", "-s", "65536"],
        &["ib_send_bw", "-n", "100", "-s", "2048", "-c", "UD"],
        &["ib_atomic_bw", "-n", "100"],
    ] {
        run_between(&sites.north, &sites.south, program);
    }
    let (north, south) = (&sites.north, &sites.south);
    exchange_between(&[
        (north, "H1-1"),
        (north, "H2-1"),
        (south, "H1-1"),
        (south, "H2-1"),
    ]);
    for lab in [north, south] {
        let drops = lab.told(&["show", "drops"]);
        assert_eq!(drops.trim(), "no packet was dropped");
        diagnose(lab, "mgmt");
    }
}

/// Runs `rping` between a site that listens on its first VF and another one that has an address of it.
fn rping(server: &Lab, client: &Lab, address: &str) {
    rping_with(server, client, &["rping", "-s", "-C", "10"], address);
}

fn rping_with(server: &Lab, client: &Lab, listening: &[&str], address: &str) {
    let mut listening = server.on(Shim::Vhca, "H1-1/1", listening);
    let mut listening = listening.stdout(Stdio::null()).spawn().unwrap();
    let asking = ["rping", "-c", "-a", address, "-C", "10"];
    let succeeds = || {
        let mut client = client.on(Shim::Vhca, "H2-1/1", &asking);
        client.output().unwrap().status.success().then_some(())
    };
    assert!(wait_for(PATIENCE, succeeds).is_some(), "{address}");
    assert!(listening.wait().unwrap().success(), "{address}");
}

#[test]
fn programs_of_two_sites_find_each_other_by_addresses_of_one_network() {
    let sites = Sites::with_networks("lite", ["10.77.0.0/16", "10.77.100.0/16"]);
    assert_eq!(sites.southern_guids().len(), 8);
    rping(&sites.north, &sites.south, "10.77.1.1");
    rping(&sites.south, &sites.north, "10.77.101.1");
    // By an address of the listener's network namespace, which is not the service's.
    let alone =
        "ip link set lo up && ip address add 10.1.0.5/32 dev lo && exec rping -s -a 10.1.0.5 -C 10";
    let alone = ["unshare", "-rn", "sh", "-c", alone];
    rping_with(&sites.north, &sites.south, &alone, "10.1.0.5");
    // It is no longer the VF's when its program is gone.
    let nowhere = ["rping", "-c", "-a", "10.1.0.5", "-C", "1"];
    let mut nowhere = sites.north.on(Shim::Vhca, "H2-1/1", &nowhere);
    assert!(!nowhere.output().unwrap().status.success());
    let nowhere = ["rping", "-c", "-a", "10.77.200.1", "-C", "1"];
    let mut nowhere = sites.north.on(Shim::Vhca, "H2-1/1", &nowhere);
    assert!(!nowhere.output().unwrap().status.success());
}

/// Returns the addresses of which a service says this.
fn addresses(site: &mut Lab, said: &str) -> BTreeSet<String> {
    let lines = site.service().output();
    let lines = lines.lines().filter(|line| line.contains(said));
    let addresses =
        lines.filter_map(|line| line.split(' ').find(|word| word.starts_with("10.77.")));
    addresses.map(str::to_owned).collect()
}

#[test]
fn of_two_sites_with_one_address_at_most_one_gives_it_up_and_either_says_so() {
    let mut sites = Sites::with_networks("lite", ["10.77.0.0/16"; 2]);
    let all = wait_for(PATIENCE, || {
        let mut said =
            |said| [&mut sites.north, &mut sites.south].map(|site| addresses(site, said));
        let [north, south] = said("the other had it first");
        assert!(north.is_disjoint(&south), "{north:?}, {south:?}");
        // On a machine so busy that probes are answered too late, both keep it.
        let [north, south] = said("is the address of a VF and of another node");
        (north.union(&south).count() == 8).then_some(())
    });
    let said = [&mut sites.north, &mut sites.south].map(|site| site.service().output());
    assert!(all.is_some(), "{said:?}");
}

#[test]
fn a_site_that_is_killed_or_stands_still_comes_back_as_it_was() {
    let mut sites = Sites::new();
    let guids = sites.southern_guids();
    for round in 0..full(4, 200) {
        sites.south.service().signal("KILL");
        let is_gone = || (nodes(&sites.north, "mgmt").len() == 8).then_some(());
        wait_for(PATIENCE, is_gone).unwrap_or_else(|| panic!("round {round}"));
        sites.restart_south();
        assert_eq!(sites.southern_guids().len(), guids.len(), "round {round}");
    }
    let north = sites.north.service();
    north.wait_for_line("down: the connection ended", PATIENCE);
    sites.south.service().signal("STOP");
    sites
        .north
        .service()
        .wait_for_line("down: nothing came", PATIENCE);
    sites.south.service().signal("CONT");
    assert_eq!(sites.southern_guids().len(), guids.len());
}

#[test]
fn opensm_manages_both_sites() {
    let sites = Sites::under("none");
    let _opensm = OpenSm::start(&sites.north, Shim::Vhca, "mgmt", "");
    assert_eq!(sites.southern_guids().len(), 8);
    assert_eq!(nodes(&sites.south, "H1-1").len(), 16);
    diagnose(&sites.south, "H1-1");
}

/// Runs `vhca trunk keygen` for a site. Returns its public key.
fn keygen(folder: &Path, site: &str) -> String {
    let binary = vhca_tests::live::binary();
    let mut command = Command::new(binary);
    let command = command.args(["trunk", "keygen"]).arg(folder.join(site));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn services_with_keys_of_each_other_are_one_subnet_and_a_third_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["north", "south", "third"].map(|site| keygen(folder.path(), site));
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(
        path("peers"),
        format!("{} north\n{} south\n", keys[0], keys[1]),
    )
    .unwrap();
    let peers = path("peers");
    let port = free_port();
    let listen = format!("S1/5=listen:tls:127.0.0.1:{port}");
    let connect = format!("S2/5=tls:localhost:{port}");
    let serve = |site: &str, sm: &str, trunk: &str| {
        let key = path(site);
        let credentials = ["--trunk-key", &key, "--trunk-peers", &peers];
        Lab::serve(&[&arguments(site, sm, trunk)[..], &credentials].concat())
    };
    let mut north = serve("north", "lite", &listen);
    let mut third = serve("third", "none", &connect);
    let (at_third, at_north) = ("does not list the key of this one", "is not listed");
    third.service().wait_for_line(at_third, PATIENCE);
    north.service().wait_for_line(at_north, PATIENCE);
    // The VFs of the third site wait for a subnet manager; the northern ones have no fault.
    let why = String::from_utf8(third.ask(&["why", "H1-1/1"]).stdout).unwrap();
    assert!(why.contains(at_third) && why.contains(&keys[2]), "{why}");
    let shown = north.json(&["show", "fabric"]).to_string();
    assert!(
        shown.contains(at_north) && shown.contains(&keys[2]),
        "{shown}"
    );
    let south = serve("south", "none", &connect);
    let sites = Sites {
        north,
        south,
        trunk: connect,
        _folder: Some(folder),
    };
    assert_eq!(sites.southern_guids().len(), 8);
    assert_eq!(nodes(&sites.north, "H1-1").len(), 16);
    // The port has its trunk, and the third site, which goes on trying, is refused without an effect on it.
    third.service().signal("TERM");
    for lab in [&sites.north, &sites.south] {
        let shown = lab.json(&["show", "fabric"]).to_string();
        assert!(!shown.contains("down: "), "{shown}");
    }
}

#[test]
fn a_trunk_without_tls_meets_one_with_it_and_both_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let key = keygen(folder.path(), "key");
    let peers = folder.path().join("peers");
    fs::write(&peers, key).unwrap();
    let (port, key) = (free_port(), folder.path().join("key"));
    let listen = format!("S1/5=listen:tls:127.0.0.1:{port}");
    let credentials = [
        "--trunk-key",
        key.to_str().unwrap(),
        "--trunk-peers",
        peers.to_str().unwrap(),
    ];
    let north = arguments("north", "lite", &listen);
    let mut north = Lab::serve(&[&north[..], &credentials].concat());
    let connect = format!("S2/5=tcp:127.0.0.1:{port}");
    let mut south = Lab::serve(&arguments("south", "none", &connect));
    south
        .service()
        .wait_for_line("the other end speaks TLS", PATIENCE);
    north
        .service()
        .wait_for_line("does not speak TLS", PATIENCE);
    let binary = vhca_tests::live::binary();
    let mut command = Command::new(binary);
    let output = command
        .args(["serve", "--trunk", "S1/5=tls:spine:18600"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("vhca trunk keygen"), "{error}");
}

#[test]
fn trunks_that_cannot_be_are_refused_with_the_remedy() {
    let sites = Sites::new();
    for (site, words) in [("north", "another --site"), ("third", "has another trunk")] {
        let mut other = Lab::serve(&arguments(site, "none", &sites.trunk));
        other.service().wait_for_line(words, PATIENCE);
    }
    let (_, address) = sites.trunk.split_once('=').unwrap();
    for (trunk, words) in [
        (format!("S2/7={address}"), "has a link already"),
        (format!("S9/1={address}"), "there is no node"),
        (format!("H2-1={address}"), "all of its ports have links"),
    ] {
        let binary = vhca_tests::live::binary();
        let output = Command::new(binary)
            .args(["serve", "--site", "x", "--trunk", &trunk])
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_host_behind_a_trunk_manages_nothing_unless_the_listener_says_so() {
    let mut sites = Sites::managed_from_the_south("");
    let taken = sites.north.service();
    taken.wait_for_line("at site south, taken for a host", PATIENCE);
    let refused = || {
        let why = sites.north.ask(&["why", "H1-1/1"]);
        let said = String::from_utf8_lossy(&why.stdout).into_owned();
        said.contains("SMPs of south, which it takes for a host")
            .then_some(said)
    };
    let said = wait_for(PATIENCE, refused).unwrap();
    assert!(said.contains("peer=fabric"), "{said}");
    let drops = sites.north.told(&["show", "drops"]);
    assert!(drops.contains("foreign_smp"), "{drops}");
    let sites = Sites::managed_from_the_south(",peer=fabric");
    assert_eq!(sites.southern_guids().len(), 8);
    assert_eq!(nodes(&sites.north, "H1-1").len(), 16);
}

#[test]
fn services_of_one_machine_meet_over_shared_memory_each_at_a_port_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("trunk");
    let listen = format!("S1=listen:vhost:{},peer=fabric", socket.display());
    let trunk = format!("S2/5=vhost:{}", socket.display());
    let serve_north = || Lab::serve(&arguments("north", "lite", &listen));
    let mut sites = Sites {
        north: serve_north(),
        south: Lab::serve(&arguments("south", "none", &trunk)),
        trunk,
        _folder: Some(folder),
    };
    assert_eq!(sites.southern_guids().len(), 8);
    let mut third = Lab::serve(&arguments("third", "none", &sites.trunk));
    third.told(&["show", "vfs", "--wait-up"]);
    assert_eq!(nodes(&sites.north, "H1-1").len(), 24);
    let write = ["ib_write_bw", "-n", "100", "-s", "65536"];
    run_between(&sites.north, &sites.south, &write);
    run_between(&third, &sites.south, &write);

    // The front end dies, and then the back end.
    sites.south.service().signal("KILL");
    let ended = "down: the connection ended";
    sites.north.service().wait_for_line(ended, PATIENCE);
    sites.restart_south();
    assert_eq!(sites.southern_guids().len(), 8);
    sites.north.service().signal("KILL");
    for lab in [&mut sites.south, &mut third] {
        lab.service().wait_for_line(ended, PATIENCE);
    }
    sites.north = serve_north();
    third.told(&["show", "vfs", "--wait-up"]);
    assert_eq!(sites.southern_guids().len(), 8);
    run_between(&sites.north, &sites.south, &write);
}

/// A service with one host and no switch, and one with two addresses for it.
struct Roaming {
    north: Lab,
    roam: Lab,
    addresses: [String; 2],
    _folder: TempDir,
}

impl Roaming {
    fn under(sm: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let addresses = ["first", "second"].map(|name| format!("unix:{}", path(name)));
        let [first, second] = &addresses;
        let first_port = format!("S1=listen:{first}");
        let second_port = format!("S2=listen:{second}");
        let north = arguments("north", sm, &first_port);
        let north = Lab::serve(&[&north[..], &["--trunk", &second_port]].concat());
        let topology = path("one-host.net");
        fs::write(&topology, "Hca 1 \"R\"\n").unwrap();
        let trunk = format!("R/1={first}");
        let host = ["--topology", &topology, "--pf", "R"];
        let roam = Lab::serve(&[&arguments("roam", "none", &trunk)[..], &host].concat());
        Self {
            north,
            roam,
            addresses,
            _folder: folder,
        }
    }

    fn lid(&self) -> Value {
        self.roam.json(&["show", "ports"])["ports"][0]["lid"].take()
    }

    /// Returns `true` if the host has sent some writes to an address.
    fn writes_pass(&self, address: &str) -> bool {
        let shown = self.roam.json(&["show", "fabric"]);
        let trunk = &shown["trunks"][0];
        trunk["way"] == address && trunk["sent_bytes"].as_u64() > Some(8 << 20)
    }

    /// Moves the host to and fro amid writes of a stock program, whose queue pairs have this timeout (IBA 9.7.6.1.3) and seven retries. Returns
    /// the longest time from the command until writes go on.
    fn move_amid_writes(&self, seconds: &str, timeout: &str) -> Duration {
        let up = self.roam.told(&["show", "vfs", "--wait-up"]);
        assert!(up.contains("yes"), "{up}");
        let lid = self.lid();
        let port = free_port().to_string();
        let writes = ["ib_write_bw", "-D", seconds, "-s", "65536"];
        let writes = [&writes[..], &["-u", timeout, "-p", &port]].concat();
        let mut serving = self.north.on(Shim::Vhca, "H1-1/1", &writes);
        let mut serving = serving.stdout(Stdio::null()).spawn().unwrap();
        let asking = [&writes[..], &["127.0.0.1"]].concat();
        let mut asking = self.roam.on(Shim::Vhca, "R/1", &asking);
        let [first, second] = &self.addresses;
        let asking = wait_for(PATIENCE, || {
            let mut asking = asking.stdout(Stdio::null()).spawn().unwrap();
            let is_over = wait_for(PATIENCE, || match asking.try_wait().unwrap() {
                // The server did not listen yet.
                Some(_) => Some(true),
                None => self.writes_pass(first).then_some(false),
            });
            (is_over == Some(false)).then_some(asking)
        });
        let mut asking = asking.unwrap();
        let mut longest = Duration::ZERO;
        for address in [second, first].into_iter().cycle().take(6) {
            let begun = Instant::now();
            self.roam.told(&["set", "trunk", "R/1", address]);
            let passed = wait_for(PATIENCE, || self.writes_pass(address).then_some(()));
            assert!(passed.is_some(), "{address}");
            longest = longest.max(begun.elapsed());
            assert_eq!(self.lid(), lid);
        }
        assert!(
            asking.try_wait().unwrap().is_none(),
            "the writes ended amid the moves"
        );
        assert!(asking.wait().unwrap().success());
        assert!(serving.wait().unwrap().success());
        longest
    }
}

#[test]
fn a_host_that_moves_amid_writes_of_a_stock_program_keeps_its_lid() {
    let longest = Roaming::under("lite").move_amid_writes("6", "14");
    println!("writes went on {longest:?} after the command at the latest");
}

#[test]
fn a_host_that_moves_amid_writes_keeps_its_lid_under_opensm_too() {
    let roaming = Roaming::under("none");
    let _opensm = OpenSm::start(&roaming.north, Shim::Vhca, "mgmt", "");
    let longest = roaming.move_amid_writes("12", "17");
    println!("writes went on {longest:?} after the command at the latest");
}
