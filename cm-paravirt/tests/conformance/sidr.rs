//! Statements about SIDR.

use std::net::{Ipv4Addr, Ipv6Addr};

use cm_paravirt::{ResetPolicy, SidrEntry, SidrTaken, SidrTarget, State};
use ib_wire::cm::CmSidrReq;
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{PKey, ServiceId};
use vf_tunnel::DropReason;

use crate::harness::*;

/// A service id of rdma_cm's UDP port space.
const RDMA_UDP: u64 = 0x0000_0000_0111_1234;

#[test]
fn c101_a_sidr_req_with_grh_goes_to_the_vf_with_the_destination_gid() {
    let mut pf = Pf::default();
    let req = sidr_req(7, 1);
    assert_eq!(pf.rx_to(req, at(PEER_LID), Some(vf_gid(3))), Rx::Vf(3, req));
    assert_eq!(
        pf.rx_to(req, at(PEER_LID), Some(peer_gid(1))),
        Rx::Drop(DropReason::UnknownGid)
    );
    pf.down.push(3);
    assert_eq!(
        pf.rx_to(req, at(PEER_LID), Some(vf_gid(3))),
        Rx::Drop(DropReason::VfDown)
    );
}

fn service(id: u64, bits: u8, pkey: Option<PKey>) -> SidrEntry {
    SidrEntry {
        target: SidrTarget::Service {
            id: ServiceId::new(id),
            bits,
        },
        pkey,
    }
}

fn address(text: &str, pkey: Option<PKey>) -> SidrEntry {
    let address = text.parse().expect("an address");
    SidrEntry {
        target: SidrTarget::Address(address),
        pkey,
    }
}

impl Pf {
    fn set_sidr(&mut self, number: u16, entries: &[SidrEntry]) {
        let set = self.machine.sidr_table_mut().set(vf(number), entries);
        assert_eq!(set, Ok(()));
    }
}

#[test]
fn c102_without_grh_the_service_table_decides_else_the_pf() {
    let mut pf = Pf::default();
    pf.set_sidr(1, &[service(0x1000, 56, Some(FOREIGN_PKEY))]);
    pf.set_sidr(2, &[service(0x1000, 56, Some(PKEY))]);
    pf.set_sidr(3, &[service(0x1000, 52, None)]);
    for (id, target) in [(0x1042, 2), (0x1142, 3)] {
        let req = sidr_req(7, id);
        assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(target, req));
    }
    assert_eq!(pf.rx(sidr_req(7, 0x2000), at(PEER_LID)), Rx::ToPf);
    // The operator's table outlives a reset, and goes when he says so.
    pf.machine.vf_reset(pf.now, vf(2), ResetPolicy::Silent);
    let req = sidr_req(9, 0x1042);
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(2, req));
    pf.set_sidr(2, &[]);
    let req = sidr_req(8, 0x1042);
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(3, req));
}

#[test]
fn c102_an_entry_is_one_vfs_alone() {
    let mut pf = Pf::default();
    let own = address("192.0.2.7", Some(PKEY));
    pf.set_sidr(1, &[own]);
    let table = pf.machine.sidr_table_mut();
    let before = [service(0x1000, 64, None)];
    assert_eq!(table.set(vf(2), &before), Ok(()));
    assert_eq!(
        table.set(vf(2), &[service(0x2000, 64, None), own]),
        Err(SidrTaken {
            entry: own,
            vf: vf(1)
        })
    );
    let of_vf = |number| {
        let held = table.iter().filter(move |(owner, _)| *owner == vf(number));
        held.map(|(_, entry)| entry).collect::<Vec<_>>()
    };
    assert_eq!((of_vf(1), of_vf(2)), (vec![own], before.to_vec()));
    // Another tenant has the same address in another partition.
    pf.set_sidr(2, &[address("192.0.2.7", Some(FOREIGN_PKEY))]);
}

/// A request with rdma_cm's header: IP version in byte 1, destination in bytes 20 to 35.
fn rdma_cm_req(id: u32, service: u64, version: u8, destination: [u8; 16]) -> Mad {
    let mut mad = sidr_req(id, service);
    let private = &mut mad.view_mut::<CmSidrReq>().private_data;
    private[1] = version << 4;
    private[20..36].copy_from_slice(&destination);
    mad
}

#[test]
fn c102_without_grh_the_address_that_rdma_cm_asks_for_decides_first() {
    let mut pf = Pf::default();
    let v4 = Ipv4Addr::new(192, 0, 2, 7);
    let v6: Ipv6Addr = "2001:db8::7".parse().expect("an address");
    pf.set_sidr(1, &[address("192.0.2.7", None)]);
    pf.set_sidr(2, &[address("2001:db8::7", Some(PKEY))]);
    pf.set_sidr(3, &[service(RDMA_UDP, 64, None)]);
    let mut v4_bytes = [0; 16];
    v4_bytes[12..].copy_from_slice(&v4.octets());
    for (version, destination, target) in [(4, v4_bytes, 1), (6, v6.octets(), 2), (4, [9; 16], 3)] {
        let req = rdma_cm_req(7, RDMA_UDP, version, destination);
        assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(target, req));
    }
    let other_service = rdma_cm_req(8, 0x1000, 4, v4_bytes);
    assert_eq!(pf.rx(other_service, at(PEER_LID)), Rx::ToPf);
}

#[test]
fn c102_an_ipv6_address_that_is_formed_of_a_vfs_guid_needs_no_table() {
    let mut pf = Pf::default();
    for prefix in [0xfe80_u64 << 48, 0x2001_0db8_0000_0001] {
        let identifier = vf_gid(3).interface_id().get() | 0x02 << 56;
        let destination = (u128::from(prefix) << 64 | u128::from(identifier)).to_be_bytes();
        let req = rdma_cm_req(7, RDMA_UDP, 6, destination);
        assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(3, req));
        let as_v4 = rdma_cm_req(8, RDMA_UDP, 4, destination);
        assert_eq!(pf.rx(as_v4, at(PEER_LID)), Rx::ToPf);
    }
    let identifier = vf_gid(3).interface_id().get();
    let not_universal = (0xfe80_u128 << 112 | u128::from(identifier)).to_be_bytes();
    let req = rdma_cm_req(7, RDMA_UDP, 6, not_universal);
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::ToPf);
}

#[test]
fn c102_a_request_of_the_ipoib_port_space_asks_for_an_address_as_well() {
    let mut pf = Pf::default();
    pf.set_sidr(1, &[address("192.0.2.7", None)]);
    let mut destination = [0; 16];
    destination[12..].copy_from_slice(&[192, 0, 2, 7]);
    let req = rdma_cm_req(7, 0x0002_1234, 4, destination);
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::Vf(1, req));
    let beside = rdma_cm_req(8, 0x0003_1234, 4, destination);
    assert_eq!(pf.rx(beside, at(PEER_LID)), Rx::ToPf);
}

#[test]
fn c102_the_table_can_be_read_and_what_it_does_not_take_is_explained() {
    let mut pf = Pf::default();
    let entry = address("192.0.2.7", None);
    pf.set_sidr(1, &[entry]);
    let held: Vec<_> = pf.machine.sidr_table().iter().collect();
    assert_eq!(held, [(vf(1), entry)]);
    let refused = "somewhere".parse::<SidrEntry>().expect_err("no entry");
    assert!(refused.to_string().starts_with("say an IP address"));
}

#[test]
fn c103_one_asker_may_ask_two_vfs_under_one_id() {
    let mut pf = Pf::default();
    let req = sidr_req(7, 0x1000);
    for number in [1, 2, 1, 2] {
        let verdict = pf.rx_to(req, at(PEER_LID), Some(vf_gid(number)));
        assert_eq!(verdict, Rx::Vf(number, req));
    }
    assert_eq!(pf.machine.len(), 2);
    for number in [1, 2] {
        let counted = pf.machine.vf_statistics(vf(number)).expect("known");
        assert_eq!(counted.pending, 1);
    }
}

#[test]
fn c103_a_request_to_another_host_is_another_request() {
    let mut pf = Pf::default();
    let first = pf.sends(1, sidr_req(7, 0x1000), at(PEER_LID));
    assert_eq!(pf.sends(1, sidr_req(7, 0x1000), at(PEER_LID)), first);
    assert_ne!(pf.sends(1, sidr_req(7, 0x1000), at(STRANGER_LID)), first);
}

#[test]
fn c102_private_data_is_never_taken_for_a_gid() {
    let mut pf = Pf::default();
    let mut req = sidr_req(7, RDMA_UDP);
    req.view_mut::<CmSidrReq>().private_data[56..72].copy_from_slice(&vf_gid(1).0);
    assert_eq!(pf.rx(req, at(PEER_LID)), Rx::ToPf);
}

#[test]
fn c103_an_answered_sidr_request_is_freed_after_the_quarantine() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, sidr_req(7, 1), at(PEER_LID));
    let rep = pf.rx(sidr_rep(wire), at(PEER_LID)).into_vf(1);
    assert_eq!(local_id(&rep), 7);
    assert_eq!(pf.states(), [State::Closed]);
    pf.wait(29);
    pf.rx(sidr_rep(wire), at(PEER_LID)).into_vf(1);
    pf.drain();
    assert!(pf.machine.is_empty());
}

#[test]
fn c103_an_unanswered_sidr_request_is_freed_a_minute_after_its_last_repetition() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, sidr_req(7, 1), at(PEER_LID));
    pf.wait(50);
    assert_eq!(pf.sends(1, sidr_req(7, 1), at(PEER_LID)), wire);
    pf.wait(59);
    pf.machine.handle_timeout(pf.now);
    assert_eq!(pf.states(), [State::SidrSent]);
    pf.wait(2);
    pf.machine.handle_timeout(pf.now);
    assert!(pf.machine.is_empty());
}

#[test]
fn c103_a_sidr_rep_from_a_stranger_is_dropped() {
    let mut pf = Pf::default();
    let wire = pf.sends(1, sidr_req(7, 1), at(PEER_LID));
    assert_eq!(
        pf.rx(sidr_rep(wire), at(STRANGER_LID)),
        Rx::Drop(DropReason::WrongPeer)
    );
    assert_eq!(pf.states(), [State::SidrSent]);
}

#[test]
fn c104_a_vfs_answer_passes_untouched() {
    let mut pf = Pf::default();
    pf.rx_to(sidr_req(7, 1), at(PEER_LID), Some(vf_gid(1)))
        .into_vf(1);
    let rep = sidr_rep(7);
    assert_eq!(pf.tx(1, rep, at(PEER_LID)), Ok(rep));
    assert_eq!(
        pf.tx(2, rep, at(PEER_LID)),
        Err(DropReason::WrongPeer),
        "a sibling was asked"
    );
    pf.drain();
    assert!(pf.machine.is_empty());
}

#[test]
fn c105_request_ids_and_communication_ids_do_not_interfere() {
    let mut pf = Pf::default();
    let connection = pf.connect(1, 7, PEER_LID, 77);
    let request = pf.sends(1, sidr_req(7, 1), at(PEER_LID));
    assert_ne!(connection, request);
    // Each space knows its own wire ids only.
    assert_eq!(
        pf.rx(sidr_rep(connection), at(PEER_LID)),
        Rx::Drop(DropReason::UnknownCommId)
    );
    pf.rx(message(AttributeId::CM_DREQ, 77, request), at(PEER_LID))
        .into_answer();
    // A peer's SIDR request does not pass for its REQ.
    pf.rx_to(sidr_req(88, 1), at(PEER_LID), Some(vf_gid(1)))
        .into_vf(1);
    assert_eq!(
        pf.rx(rej_timeout(88, 0, peer_ca(PEER_LID)), at(PEER_LID)),
        Rx::Drop(DropReason::UnknownCommId)
    );
    pf.rx(sidr_rep(request), at(PEER_LID)).into_vf(1);
    assert_eq!(
        pf.machine.connections(pf.now).filter(|c| !c.sidr).count(),
        1
    );
    assert!(pf.states().contains(&State::Established));
}
