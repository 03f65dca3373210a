//! The ports by which a guest's program and its VMM talk: steps, numbers, orders, and the end.

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vhca::device::Device;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Ports: address and length of a step's name, a number, the next order, and the end.
const NAME: u16 = 0xe0;
const BEGIN: u16 = 0xe4;
const REPORT: u16 = 0xec;
const ORDER: u16 = 0xf4;
const END: u16 = 0xe8;

/// A guest that takes longer for one order hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The steps that a guest has begun.
type Steps = Arc<Mutex<Vec<(String, Instant)>>>;

/// The guest's end, on the thread of its processor.
pub(crate) struct Console {
    steps: Steps,
    name: u32,
    /// The last number that the guest reported.
    pub(crate) reported: u32,
    orders: Receiver<u32>,
    news: Sender<News>,
    times: Times,
}

/// An access to a register.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    Write,
    Read,
}

/// Times of a guest's writes and reads since its last report, by [`Access`].
pub(crate) type Times = [Vec<Duration>; 2];

/// Event of a VM for which its VMM waits.
enum News {
    /// The guest has carried out its orders. Its processor stands still until the next one.
    Stands(u32),
    /// The end, with the time that the payload measured, in nanoseconds.
    Ended(Result<(u64, Times), String>, Instant),
}

/// A guest on a thread of its own, as its VMM sees it. The device is detached when this goes.
pub(crate) struct Running {
    pub(crate) device: Device,
    steps: Steps,
    orders: Sender<u32>,
    news: Receiver<News>,
}

/// A boot that went well.
pub(crate) struct Boot {
    pub(crate) steps: Vec<(String, Duration)>,
    /// Time that the payload measured, in nanoseconds.
    pub(crate) measured: u64,
    pub(crate) times: Times,
}

impl Console {
    /// Creates both ends.
    pub(crate) fn new(device: Device) -> (Self, Running) {
        let steps = Steps::default();
        let ((give, take), (tell, hear)) = (channel(), channel());
        let console = Self {
            steps: Arc::clone(&steps),
            name: 0,
            reported: 0,
            orders: take,
            news: tell,
            times: Times::default(),
        };
        let running = Running {
            device,
            steps,
            orders: give,
            news: hear,
        };
        (console, running)
    }

    /// Reads a port. The processor stands still until there is an order.
    pub(crate) fn read(&self, port: u16, data: &mut [u8]) -> Result<(), Box<dyn Error>> {
        if port != ORDER {
            return Err(format!("a read from port {port:#x}").into());
        }
        self.news.send(News::Stands(self.reported))?;
        data.copy_from_slice(&self.orders.recv()?.to_le_bytes());
        Ok(())
    }

    /// Takes a write to a port. Returns `true` if the program ends with it.
    pub(crate) fn write(
        &mut self,
        port: u16,
        value: u32,
        memory: &GuestMemoryMmap,
    ) -> Result<bool, Box<dyn Error>> {
        match port {
            NAME => self.name = value,
            BEGIN => {
                let mut text = vec![0; value.min(200) as usize];
                memory.read_slice(&mut text, GuestAddress(self.name.into()))?;
                let text = String::from_utf8_lossy(&text).into_owned();
                let mut steps = self.steps.lock().map_err(|_| "a thread failed")?;
                steps.push((text, Instant::now()));
            }
            REPORT => {
                self.reported = value;
                self.times = Times::default();
            }
            END if value == 0 => return Ok(true),
            END => {
                // What it named last is no step, but the file and the reason.
                let mut steps = self.steps.lock().map_err(|_| "a thread failed")?;
                let place = steps.pop().map(|(name, _)| name).unwrap_or_default();
                return Err(format!("the payload gave up in line {value} of {place}").into());
            }
            _ => return Err(format!("a write to port {port:#x}").into()),
        }
        Ok(false)
    }

    /// Carries out an access to a register, and notes its time.
    pub(crate) fn time(&mut self, access: Access, call: impl FnOnce()) {
        let begun = Instant::now();
        call();
        self.times[access as usize].push(begun.elapsed());
    }

    /// Reports the end.
    pub(crate) fn end(self, measured: Result<u64, Box<dyn Error>>) {
        let measured = measured.map(|measured| (measured, self.times));
        let measured = measured.map_err(|error| error.to_string());
        // Nobody listens if the VMM has given this guest up.
        let _ = self.news.send(News::Ended(measured, Instant::now()));
    }
}

impl Running {
    /// Orders something of the guest, which is done at the next [`Running::wait`].
    pub(crate) fn order(&self, order: u32) {
        // A guest that has ended says why where it is waited for.
        let _ = self.orders.send(order);
    }

    /// Waits until the guest stands still. Returns the number that it reported last.
    pub(crate) fn wait(&self) -> Result<u32, Box<dyn Error>> {
        match self.news.recv_timeout(LIMIT) {
            Ok(News::Stands(reported)) => Ok(reported),
            Ok(News::Ended(Err(why), _)) => Err(self.failure(&why)),
            Ok(News::Ended(Ok(_), _)) => Err(self.failure("ended before its time")),
            Err(_) => Err(self.failure(&format!("hangs; {:?}", self.device))),
        }
    }

    /// Orders something of the guest and waits until it is done.
    pub(crate) fn call(&self, order: u32) -> Result<(), Box<dyn Error>> {
        self.order(order);
        self.wait().map(|_| ())
    }

    /// Waits for the end.
    pub(crate) fn end(self) -> Result<Boot, Box<dyn Error>> {
        let ((measured, times), ended) = match self.news.recv_timeout(LIMIT) {
            Ok(News::Ended(Ok(measured), ended)) => (measured, ended),
            Ok(News::Ended(Err(why), _)) => return Err(self.failure(&why)),
            Ok(News::Stands(_)) => return Err(self.failure("waits for an order")),
            Err(_) => return Err(self.failure(&format!("hangs; {:?}", self.device))),
        };
        let steps = self.steps.lock().map_err(|_| "a thread failed")?;
        let ends = steps.iter().skip(1).map(|(_, begun)| *begun);
        let steps = steps.iter().zip(ends.chain([ended]));
        let steps = steps.map(|((name, begun), end)| (name.clone(), end - *begun));
        Ok(Boot {
            steps: steps.collect(),
            measured,
            times,
        })
    }

    /// Names the step that failed.
    fn failure(&self, why: &str) -> Box<dyn Error> {
        let Ok(steps) = self.steps.lock() else {
            return "a thread failed".into();
        };
        let last = steps.last().map_or("start", |(name, _)| name);
        format!("step \"{last}\": {why}").into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.device.detach();
    }
}
