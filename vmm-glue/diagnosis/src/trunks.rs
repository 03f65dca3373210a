//! Trunks whose other sites a VF with an active port does not reach, or reaches late.

use core::time::Duration;

use crate::fault::Fault;
use crate::subnet::Subnet;

/// Time for an acknowledgment of a queue pair with timeout 14 (IBA 9.7.6.1.3: 4.096 us times 2^14), which perftest and most programs set.
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

/// Returns the fault of the first trunk to another site that is down, or whose pings return late. A trunk to a host has none: hosts leave and return.
pub(crate) fn why(subnet: &Subnet) -> Option<Fault> {
    let mut trunks = subnet.trunks.iter().filter(|(_, trunk)| !trunk.is_guarded);
    let slow = |round_trip: Option<Duration>| round_trip.filter(|time| *time >= ACK_TIMEOUT);
    trunks.find_map(|(at, trunk)| {
        let (port, way) = (subnet.port_name(*at), &trunk.way);
        match (&trunk.peer, slow(trunk.round_trip)) {
            (Err(reason), _) => {
                let summary = "the port is up, and the site at the other end of a trunk is out of reach";
                let fault = Fault::new("trunk_down", summary);
                Some(
                    fault.seen(format!("trunk {port} ({way}): {reason}")).next(
                        "see whether the service at the other end runs, and its vhca show fabric",
                    ),
                )
            }
            (Ok(site), Some(time)) => {
                let summary = "packets take so long to the site at the other end of a trunk that RC queue pairs send them again";
                let fault = Fault::new("trunk_slow", summary).seen(format!(
                    "the latest ping on trunk {port} ({way}) took {} ms to {site} and back, and an acknowledgment is awaited for {} ms (timeout 14)",
                    time.as_millis(),
                    ACK_TIMEOUT.as_millis()
                ));
                Some(fault.next(format!(
                    "see the network to {site} and the load of its service; programs that are to bear it set a longer timeout (ib_write_bw -u 18)"
                )))
            }
            (Ok(_), None) => None,
        }
    })
}
