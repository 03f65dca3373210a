//! A PF context on a port of a Linux HCA, by hca-linux, hca-functions and umad, and the software of a host on each of its VFs.
//!
//! ```text
//! linux_pf DEVICE PORT VFS answer EXCHANGES
//! linux_pf DEVICE PORT VFS ask EXCHANGES GID...
//! ```
//!
//! Both print the GIDs of the VFs once their ports are active. With `answer` each VF answers so many SIDR requests, the CM's smallest
//! exchange, and the program stays until it is killed. With `ask` each VF looks up the path to its GID of the list and the records of all
//! nodes, has its requests answered, 40 at a time and all VFs' with the same ids, and counts the answers. An error is one line, with exit status 2.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use hca_api::GlobalRoute;
use ib_endpoint::cm::{CmEventKind, ConnId};
use ib_endpoint::{EndPortEvent, MadAddress, SaError, SaEvent, SaRequest};
use ib_wire::cm::{CmSidrRep, CmSidrReq};
use ib_wire::mad::MadStatus;
use ib_wire::sa::{ComponentMask, NodeRecord, PathRecord};
use ib_wire::{Gid, GidIndex, PKey, ServiceId};
use vf_tunnel::VfId;
use vhca_tests::live::linux_pf::{Result, Shared, ended};

const SERVICE: ServiceId = ServiceId::new(0x1000);

/// Requests that each VF sends at once.
const AT_ONCE: usize = 40;

/// The exchanges of an adapter's VFs.
struct Exchanges(Shared);

impl Exchanges {
    /// Waits until all VFs have GIDs, and prints them.
    fn bring_up(&mut self) -> Result<()> {
        for (vf, gid) in self.0.bring_up()? {
            println!("{vf}: {gid}");
        }
        Ok(())
    }

    fn answer(&mut self, exchanges: usize) -> Result<()> {
        for vf in self.0.vfs.clone() {
            self.0.port(vf)?.cm().listen(SERVICE, u64::MAX)?;
        }
        self.bring_up()?;
        for _ in 0..exchanges * self.0.vfs.len() {
            self.answer_next()?;
        }
        println!("answered {exchanges} each");
        // Some were repetitions, and answers that have not left yet would be lost with the files.
        while self.answer_next().is_ok() {}
        Ok(())
    }

    /// Answers the next SIDR request.
    fn answer_next(&mut self) -> Result<()> {
        let (vf, conn) = self.request()?;
        let now = self.0.now();
        let reply = CmSidrRep::default();
        Ok(self.0.port(vf)?.cm().send_sidr_rep(now, conn, &reply)?)
    }

    /// Returns the next SIDR request.
    fn request(&mut self) -> Result<(VfId, ConnId)> {
        loop {
            if let (vf, EndPortEvent::Cm(event)) = self.0.event()?
                && matches!(event.kind, CmEventKind::SidrReqReceived { .. })
            {
                return Ok((vf, event.conn));
            }
        }
    }

    fn ask(&mut self, exchanges: usize, gids: &[Gid]) -> Result<()> {
        self.bring_up()?;
        let asked = self.0.vfs.clone().into_iter().zip(gids.iter().copied());
        let asked: BTreeMap<_, _> = asked.collect();
        let now = self.0.now();
        for (vf, to) in &asked {
            let own = self.0.gid(*vf)?.ok_or("the VF has no GID")?;
            let port = self.0.port(*vf)?;
            port.query(now, SaRequest::path_by_gids(own, *to, None));
            port.query(
                now,
                SaRequest::get_table(&NodeRecord::default(), ComponentMask::NONE),
            );
        }
        let (mut paths, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        while paths.len() + nodes.len() < 2 * asked.len() {
            let (vf, EndPortEvent::Sa(SaEvent::Answered { result, .. })) = self.0.event()? else {
                continue;
            };
            let answer = match result {
                // The SA of a RoCE port has no records of nodes.
                Err(SaError::Status(MadStatus::SA_NO_RECORDS)) => {
                    nodes.insert(vf, 0);
                    continue;
                }
                result => result?,
            };
            match answer.records::<NodeRecord>().count() {
                0 | 1 => {
                    let path: PathRecord = answer.record().ok_or("no path")?;
                    paths.insert(vf, path);
                }
                count => {
                    nodes.insert(vf, count);
                }
            }
        }
        let mut answers = BTreeMap::new();
        let mut left = exchanges;
        while left > 0 {
            let round = left.min(AT_ONCE);
            left -= round;
            self.exchange(round, &paths, &mut answers)?;
        }
        for (vf, to) in &asked {
            let is_it = paths.get(vf).is_some_and(|path| path.dgid == *to);
            println!(
                "{vf}: path {is_it}, nodes {}, answers {}",
                nodes[vf], answers[vf]
            );
        }
        Ok(())
    }

    /// Sends so many requests from each VF, and counts the answers.
    fn exchange(
        &mut self,
        round: usize,
        paths: &BTreeMap<VfId, PathRecord>,
        answers: &mut BTreeMap<VfId, usize>,
    ) -> Result<()> {
        for _ in 0..round {
            for (vf, path) in paths {
                let now = self.0.now();
                let request = CmSidrReq {
                    service_id: SERVICE,
                    pkey: PKey::DEFAULT_FULL,
                    ..CmSidrReq::default()
                };
                let route = GlobalRoute {
                    remote_gid: path.dgid,
                    sgid_index: GidIndex(0),
                    flow_label: 0,
                    hop_limit: 1,
                    traffic_class: 0,
                };
                let to = MadAddress {
                    grh: Some(route),
                    ..MadAddress::gsi(path.dlid)
                };
                let second = Duration::from_secs(1);
                let cm = self.0.port(*vf)?.cm();
                cm.send_sidr_req(now, &to, &request, second, 8)?;
            }
        }
        for _ in 0..round * paths.len() {
            let (vf, event) = loop {
                if let (vf, EndPortEvent::Cm(event)) = self.0.event()? {
                    break (vf, event);
                }
            };
            let CmEventKind::SidrRepReceived { from, .. } = event.kind else {
                return Err(format!("{vf}: {event:?}").into());
            };
            let answers_as = from.grh.map(|route| route.remote_gid);
            if answers_as != paths.get(&vf).map(|path| path.dgid) {
                return Err(format!("{vf} is answered by {answers_as:?}").into());
            }
            *answers.entry(vf).or_default() += 1;
        }
        Ok(())
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [device, port, vfs, rest @ ..] = words.as_slice() else {
        return Err("which device and port, and how many VFs?".into());
    };
    let shared = Shared::open(device, port.parse()?, vfs.parse()?, None)?;
    let mut shared = Exchanges(shared);
    match rest {
        ["answer", exchanges] => shared.answer(exchanges.parse()?),
        ["ask", exchanges, gids @ ..] => {
            let gids = gids.iter().map(|gid| {
                let address: std::net::Ipv6Addr = gid.parse()?;
                Ok(Gid(address.octets()))
            });
            shared.ask(exchanges.parse()?, &gids.collect::<Result<Vec<_>>>()?)
        }
        _ => Err("answer or ask?".into()),
    }
}

fn main() -> ExitCode {
    ended(run())
}
