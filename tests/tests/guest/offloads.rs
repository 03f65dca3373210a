//! Acceptance: TCP by IPoIB arrives equal whether the device cuts it into packets and writes its checksums or the guest does.

use vhca_tests::live::Capture;

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;
use crate::ip::{TRANSFER, address, bring_up};

/// Sends `/tmp/sent` of the first guest to `/tmp/copied` of the second, and compares them.
fn copy(first: &mut Guest, second: &mut Guest) {
    second.start("copied.log", "nc -l -p 5000 -e sh -c 'cat >/tmp/copied'");
    let client = format!(
        "until nc {} 5000 </tmp/sent; do sleep 0.1; done",
        address(1)
    );
    first.told_within(TRANSFER, &client);
    second.told_within(TRANSFER, "while pidof nc; do sleep 0.1; done");
    let sums = [(first, "/tmp/sent"), (second, "/tmp/copied")]
        .map(|(guest, file)| guest.told_within(TRANSFER, &format!("sha256sum <{file}")));
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn tcp_arrives_equal_by_the_offloads_of_the_device_and_without() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "1"]);
    let mut guests = fabric.guests("6.1", [("H1-1", 1), ("H2-1", 1)]);
    bring_up(&mut guests);
    let [mut first, mut second] = guests;
    for guest in [&mut first, &mut second] {
        let features = guest.told("ethtool -k ib0");
        for on in [
            "rx-checksumming: on",
            "tx-checksumming: on",
            "tcp-segmentation-offload: on",
        ] {
            assert!(features.contains(on), "{features}");
        }
    }
    let fill = format!(
        "dd if=/dev/urandom of=/tmp/sent bs=1M count={}",
        full(8, 128)
    );
    first.told(&fill);
    for offloads in ["on", "off"] {
        for guest in [&mut first, &mut second] {
            guest.told(&format!(
                "ethtool -K ib0 rx {offloads} tx {offloads} tso {offloads}"
            ));
        }
        let capture = Capture::start(&fabric.lab);
        copy(&mut first, &mut second);
        let packets = capture.end();
        let count = packets.tcp_with_right_checksums();
        // Each byte is seen on each of the links, in packets of the MTU.
        assert!(count > 8 << 20 >> 11, "{count} packets");
    }
    // A guest with offloads and one without understand each other.
    first.told("ethtool -K ib0 rx on tx on tso on");
    copy(&mut first, &mut second);
}
