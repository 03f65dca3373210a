//! A guest: its function, and the driver of that.

use alloc::format;
use core::fmt::Display;
use core::panic::Location;

use ib_vtime::Duration;
use ib_wire::PortNum;
use mlx4_driver::{Bus, Driver};

use super::cpu::{self, step};
use super::heap::Pages;
use super::vf::Vf;

pub(crate) const PORT: PortNum = PortNum(1);

/// The longest wait for an interrupt before the driver looks by itself.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// Returns a value, or ends the guest with the place and the text of the error.
#[track_caller]
pub(crate) fn sure<T, E: Display>(result: Result<T, E>) -> T {
    let at = Location::caller();
    result.unwrap_or_else(|error| {
        step(&format!("{}: {error}", at.file()));
        cpu::end(at.line())
    })
}

pub(crate) struct Guest {
    pub(crate) vf: Vf,
    pub(crate) driver: Driver,
}

impl Guest {
    /// Binds to a function whose registers are placed, and waits for its port.
    pub(crate) fn bind(mut vf: Vf) -> Self {
        step("the driver binds");
        let driver = sure(Driver::probe(&mut vf, Pages));
        let mut this = Self { vf, driver };
        step("the port is active");
        this.until(|driver| driver.port(PORT).is_active().then_some(()));
        this
    }

    /// Unbinds from the function.
    pub(crate) fn unbind(mut self) {
        step("the driver unbinds");
        sure(self.driver.remove(&mut self.vf));
    }

    /// Serves the driver until something is so.
    pub(crate) fn until<T>(&mut self, mut is_so: impl FnMut(&mut Driver) -> Option<T>) -> T {
        loop {
            sure(self.driver.serve(&mut self.vf));
            while self.driver.poll_event().is_some() {}
            if let Some(found) = is_so(&mut self.driver) {
                return found;
            }
            if !self.driver.has_work() {
                self.vf.wait(LOOK);
            }
        }
    }
}
