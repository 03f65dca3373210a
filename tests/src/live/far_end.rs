//! The other end of a trunk of a service.

use ib_trunk::{Hello, Session, SessionConfig, SiteName};
use ib_vtime::{Duration, Instant};

/// Returns the session of port 1 of the first node of another site. It ends after so long without a byte.
#[must_use]
pub fn far_end(site: SiteName, timeout: Duration) -> Session {
    let hello = Hello {
        node_guid: site.guid(1),
        site,
        port: 1,
    };
    Session::new(Instant::ZERO, SessionConfig { hello, timeout })
}
