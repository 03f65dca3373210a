//! What the users of conversations do when their time has come.

use std::time::Duration;

use ib_endpoint::cm::{CmError, ConnId, Rendezvous, Role, State};
use ib_wire::PKey;
use ib_wire::cm::{ApStatus, CmApr, CmLap, CmRep, CmReq, CmSidrRep, CmSidrReq, SidrStatus};

use super::driver::{Action, Driver, What};
use super::plan::{REFUSAL, qpn, write_number};
use super::side::Asked;
use super::{Channel, Ending, Goodbye, Kind, NodeAddress};

/// Each try of a SIDR_REQ.
const SIDR_WAIT: Duration = Duration::from_millis(20);

impl<C: Channel> Driver<C> {
    /// Does what a user does.
    pub(super) fn act(&mut self, action: Action) {
        let Action {
            conversation: number,
            side,
            what,
        } = action;
        let done = match what {
            What::Start => self.start(number, side),
            What::AnswerSidr(conn, life) => {
                let node = self.node_of(number, side);
                if self.nodes[node].life == life {
                    self.answer_sidr(number, side, conn)
                } else {
                    Ok(())
                }
            }
            _ => match (self.side(number, side).conn, self.state(number, side)) {
                (Some(conn), Some(state)) => self.act_on(number, side, conn, state, what),
                // The connection is over.
                _ => Ok(()),
            },
        };
        if let Err(error) = done {
            self.violation(format!(
                "conversation {number} side {side} {what:?}: {error}"
            ));
        }
    }

    /// Does what a user does with its connection, if the state still allows it.
    fn act_on(
        &mut self,
        number: usize,
        side: usize,
        conn: ConnId,
        state: State,
        what: What,
    ) -> Result<(), CmError> {
        let now = self.now;
        match (what, state) {
            (What::Mra, State::ReqRcvd | State::RepRcvd | State::LapRcvd) => {
                self.mra(number, side, conn, state)
            }
            (What::AnswerReq, State::ReqRcvd | State::MraReqSent) => {
                self.answer_req(number, side, conn)
            }
            (What::AnswerRep, State::RepRcvd | State::MraRepSent) => {
                self.answer_rep(number, side, conn)
            }
            (What::Lap(lap), State::Established) => self.lap(number, side, conn, lap),
            (What::AnswerLap(lap), State::LapRcvd | State::MraLapSent) => {
                self.answer_lap(number, side, conn, lap)
            }
            (What::EarlyPacket, State::RepSent | State::MraRepRcvd) => {
                self.cm(number, side).establish(now, conn)?;
                self.establish(number, side);
                Ok(())
            }
            (
                What::Impatience,
                State::ReqSent
                | State::MraReqRcvd
                | State::ReqRcvd
                | State::MraReqSent
                | State::RepRcvd
                | State::MraRepSent,
            ) => self.destroy(number, side, conn, Ending::Abandoned),
            (
                What::Goodbye | What::Linger,
                State::Established
                | State::LapSent
                | State::LapRcvd
                | State::MraLapSent
                | State::MraLapRcvd,
            ) => self.goodbye(number, side, conn),
            (What::AnswerDreq, State::DreqRcvd) => {
                self.cm(number, side).send_drep(now, conn, b"bye")
            }
            // Something else happened first.
            _ => Ok(()),
        }
    }

    fn start(&mut self, number: usize, side: usize) -> Result<(), CmError> {
        let now = self.now;
        let plan = self.conversations[number].plan.clone();
        let addresses: Vec<NodeAddress> = self.nodes.iter().map(|node| node.address).collect();
        let peer = addresses[plan.nodes[1 - side]];
        let to = self.channel().address(number, plan.kind, &peer);
        let (conn, asked) = if plan.kind == Kind::Sidr {
            let mut req = CmSidrReq {
                service_id: plan.service_id(number),
                pkey: PKey::DEFAULT_FULL,
                ..CmSidrReq::default()
            };
            write_number(&mut req.private_data, number);
            let cm = self.cm(number, side);
            let conn = cm.send_sidr_req(now, &to, &req, SIDR_WAIT, plan.retries)?;
            (conn, Asked::with_wait(now, SIDR_WAIT, plan.retries))
        } else {
            let req: CmReq = plan.req(number, side, &addresses);
            let rendezvous = if plan.kind == Kind::PeerToPeer {
                Rendezvous::PeerToPeer
            } else {
                Rendezvous::ClientServer
            };
            let conn = self.cm(number, side).send_req(now, &to, &req, rendezvous)?;
            (
                conn,
                Asked::new(now, plan.response_timeouts[0], plan.retries),
            )
        };
        self.own(number, side, conn);
        self.side(number, side).asked = Some(asked);
        Ok(())
    }

    fn mra(
        &mut self,
        number: usize,
        side: usize,
        conn: ConnId,
        state: State,
    ) -> Result<(), CmError> {
        let now = self.now;
        let plan = &self.conversations[number].plan;
        let reply = match state {
            State::ReqRcvd => plan.to_request,
            State::RepRcvd => plan.to_rep,
            _ => plan.laps[0].1,
        };
        match reply.mra {
            Some((_, code)) => self.cm(number, side).send_mra(now, conn, code, &[]),
            None => Ok(()),
        }
    }

    fn answer_req(&mut self, number: usize, side: usize, conn: ConnId) -> Result<(), CmError> {
        let now = self.now;
        let plan = &self.conversations[number].plan;
        let (accept, code, retries) = (
            plan.to_request.accept,
            plan.response_timeouts[1],
            plan.retries,
        );
        if !accept {
            self.cm(number, side)
                .send_rej(now, conn, REFUSAL, &[], b"no")?;
            self.conclude(number, side, Ending::Refused);
            return Ok(());
        }
        let rep = CmRep {
            local_qpn: qpn(number, side),
            ..CmRep::default()
        };
        self.cm(number, side).send_rep(now, conn, &rep)?;
        self.side(number, side).asked = Some(Asked::new(now, code, retries));
        Ok(())
    }

    fn answer_rep(&mut self, number: usize, side: usize, conn: ConnId) -> Result<(), CmError> {
        let now = self.now;
        let plan = &self.conversations[number].plan;
        let (accept, early_packet) = (plan.to_rep.accept, plan.early_packet);
        if !accept {
            self.cm(number, side)
                .send_rej(now, conn, REFUSAL, &[], b"no")?;
            self.conclude(number, side, Ending::Refused);
            return Ok(());
        }
        self.cm(number, side).send_rtu(now, conn, b"go")?;
        self.establish(number, side);
        if early_packet {
            let delay = Duration::from_millis(1);
            self.schedule(number, 1 - side, delay, What::EarlyPacket);
        }
        Ok(())
    }

    fn answer_sidr(&mut self, number: usize, side: usize, conn: ConnId) -> Result<(), CmError> {
        let now = self.now;
        let status = if self.conversations[number].plan.to_request.accept {
            SidrStatus::OK
        } else {
            SidrStatus::REJECTED
        };
        let rep = CmSidrRep {
            status,
            ..CmSidrRep::default()
        };
        self.cm(number, side).send_sidr_rep(now, conn, &rep)?;
        self.conclude(number, side, Ending::Resolved(status));
        Ok(())
    }

    fn lap(&mut self, number: usize, side: usize, conn: ConnId, lap: usize) -> Result<(), CmError> {
        let now = self.now;
        let plan = &self.conversations[number].plan;
        let (code, retries) = (plan.response_timeouts[0], plan.retries);
        let [own, peer] = [side, 1 - side].map(|side| plan.nodes[side]);
        let (own, peer) = (self.nodes[own].address, self.nodes[peer].address);
        let mut message = CmLap {
            alternate_local_lid: own.lid,
            alternate_remote_lid: peer.lid,
            alternate_local_gid: own.gid,
            alternate_remote_gid: peer.gid,
            ..CmLap::default()
        };
        message.set_remote_cm_response_timeout(code);
        write_number(&mut message.private_data, number);
        message.private_data[8] = u8::try_from(lap).unwrap_or(u8::MAX);
        self.cm(number, side).send_lap(now, conn, &message)?;
        self.side(number, side).asked = Some(Asked::new(now, code, retries));
        Ok(())
    }

    fn answer_lap(
        &mut self,
        number: usize,
        side: usize,
        conn: ConnId,
        lap: u8,
    ) -> Result<(), CmError> {
        let now = self.now;
        let accept = self.conversations[number].plan.laps[usize::from(lap)]
            .1
            .accept;
        let mut apr = CmApr {
            ap_status: if accept {
                ApStatus::OK
            } else {
                ApStatus::REJECTED
            },
            ..CmApr::default()
        };
        apr.private_data[8] = lap;
        self.cm(number, side).send_apr(now, conn, &apr)?;
        self.side(number, side).laps.insert(lap, accept);
        Ok(())
    }

    fn goodbye(&mut self, number: usize, side: usize, conn: ConnId) -> Result<(), CmError> {
        let now = self.now;
        let plan = &self.conversations[number].plan;
        let retries = plan.retries;
        let codes = plan.response_timeouts;
        if plan.goodbye == Goodbye::Destroy {
            return self.destroy(number, side, conn, Ending::Closed);
        }
        let code = match self.role(number, side) {
            Some(Role::Passive) => codes[1],
            _ => codes[0],
        };
        self.cm(number, side).send_dreq(now, conn, b"bye")?;
        self.side(number, side).asked = Some(Asked::new(now, code, retries));
        Ok(())
    }

    fn destroy(
        &mut self,
        number: usize,
        side: usize,
        conn: ConnId,
        ending: Ending,
    ) -> Result<(), CmError> {
        let now = self.now;
        let node = self.node_of(number, side);
        self.nodes[node].cm.destroy(now, conn)?;
        self.nodes[node].owners.remove(&conn);
        self.conclude(number, side, ending);
        Ok(())
    }
}
