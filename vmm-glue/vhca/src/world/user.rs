//! A port as the software on it uses it, whatever carries its MADs.

use core::fmt;

use hca_api::{Hca, HcaError};
use ib_endpoint::cm::Cm;
use ib_endpoint::sa_client::{QueryId, StandingId, Wish};
use ib_endpoint::{
    EndPort, LinkCounters, MadAgent, MadAgentConfig, MadTransport, PortView, RetryPolicy, SaClient,
    SaRequest,
};
use ib_vtime::Instant;

/// What the user of an [`EndPort`] needs of it: on a host's own QP1, on that of a PF which shares it,
/// and on a VF's proxy alike.
pub trait PortSoftware: fmt::Debug {
    /// The port as it was read last.
    fn view(&self) -> &PortView;

    /// The agent on QP1.
    fn gsi(&mut self) -> &mut MadAgent;

    /// The agents on QP1, and on QP0 if it is open.
    fn agents(&mut self) -> (&mut MadAgent, Option<&mut MadAgent>);

    /// Takes the port's QP0; see [`EndPort::open_smi`].
    ///
    /// # Errors
    /// Those of [`EndPort::open_smi`].
    fn open_smi(
        &mut self,
        hca: &mut dyn Hca,
        config: MadAgentConfig,
    ) -> Result<&mut MadAgent, HcaError>;

    /// MADs that did not pass between QP1 and its agent.
    fn gsi_counters(&self) -> LinkCounters;

    /// The connection manager.
    fn cm(&mut self) -> &mut Cm;

    /// The SA client, to be looked at.
    fn sa(&self) -> &SaClient;

    /// Asks the SA; see [`SaClient::query`].
    fn query(&mut self, now: Instant, request: SaRequest) -> QueryId;

    /// Asks the SA; see [`SaClient::query_with`].
    fn query_with(&mut self, now: Instant, request: SaRequest, policy: RetryPolicy) -> QueryId;

    /// Gives a query up; see [`SaClient::cancel`].
    fn cancel_query(&mut self, query: QueryId) -> bool;

    /// Makes a standing wish; see [`SaClient::wish`].
    fn wish(&mut self, now: Instant, wish: Wish) -> StandingId;

    /// Ends a standing wish; see [`SaClient::withdraw`].
    fn withdraw(&mut self, now: Instant, standing: StandingId) -> bool;
}

impl<G: MadTransport> PortSoftware for EndPort<G> {
    fn view(&self) -> &PortView {
        self.view()
    }

    fn gsi(&mut self) -> &mut MadAgent {
        self.gsi()
    }

    fn agents(&mut self) -> (&mut MadAgent, Option<&mut MadAgent>) {
        self.agents()
    }

    fn open_smi(
        &mut self,
        hca: &mut dyn Hca,
        config: MadAgentConfig,
    ) -> Result<&mut MadAgent, HcaError> {
        self.open_smi(hca, config)
    }

    fn gsi_counters(&self) -> LinkCounters {
        self.gsi_counters()
    }

    fn cm(&mut self) -> &mut Cm {
        self.cm()
    }

    fn sa(&self) -> &SaClient {
        self.sa()
    }

    fn query(&mut self, now: Instant, request: SaRequest) -> QueryId {
        self.query(now, request)
    }

    fn query_with(&mut self, now: Instant, request: SaRequest, policy: RetryPolicy) -> QueryId {
        self.query_with(now, request, policy)
    }

    fn cancel_query(&mut self, query: QueryId) -> bool {
        self.cancel_query(query)
    }

    fn wish(&mut self, now: Instant, wish: Wish) -> StandingId {
        self.wish(now, wish)
    }

    fn withdraw(&mut self, now: Instant, standing: StandingId) -> bool {
        self.withdraw(now, standing)
    }
}
