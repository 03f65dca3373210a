//! Acceptance: guests of two services whose fabrics a trunk joins.

use tempfile::TempDir;

use crate::fabric::{Fabric, Manager};
use crate::ip::{address, bring_up, drops, number_before, pair, services_resolve};

/// Two services that a trunk joins, of which the first has the subnet manager.
pub(crate) struct Sites {
    pub(crate) north: Fabric,
    pub(crate) south: Fabric,
    /// The folder of the trunk's socket.
    _folder: TempDir,
}

impl Sites {
    /// Serves at either site with these arguments, and with more of its own.
    pub(crate) fn new(both: &[&str], own: [&[&str]; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("trunk");
        let listen = format!("S1/5=listen:unix:{},peer=fabric", socket.display());
        let connect = format!("S2/5=unix:{}", socket.display());
        let serve = |manager, site, trunk, own: &[&str]| {
            let trunk = ["--site", site, "--trunk", trunk];
            Fabric::new(manager, &[both, &trunk, own].concat())
        };
        Self {
            north: serve(Manager::Lite, "north", listen.as_str(), own[0]),
            south: serve(Manager::Neighbour, "south", connect.as_str(), own[1]),
            _folder: folder,
        }
    }
}

#[test]
fn guests_of_two_services_talk_across_a_trunk() {
    let sites = Sites::new(&["--topology", "two-switch", "--vfs", "1"], [&[], &[]]);
    let mut guests = [
        sites.north.guest("6.1", "H1-1", 1),
        sites.south.guest("6.1", "H2-1", 1),
    ];
    bring_up(&mut guests);
    let [first, second] = &mut guests;
    let ping = format!("ping -A -q -c 200 -W 10 -s 1472 {}", address(1));
    let told = first.told(&ping);
    assert_eq!(number_before(&told, "received"), 200, "{told}");
    for program in [
        "ibv_rc_pingpong -c -s 65536 -n 200",
        "ibv_ud_pingpong -n 200",
        "ib_write_bw -F -R -n 100",
        "ib_read_bw -F -n 100",
    ] {
        pair(first, second, program, &format!("{program} {}", address(1)));
    }
    let client = format!("rping -c -C 20 -a {}", address(1));
    pair(first, second, "rping -s -C 20", &client);
    services_resolve(first, second, [&address(0), &address(1)]);
    for site in [&sites.north, &sites.south] {
        assert_eq!(drops(site), Vec::<String>::new());
    }
}
