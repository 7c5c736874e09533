//! What crosses the C ABI: texts in, sinks out, errors as codes, and no panic.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

pub const OK: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 1;
pub const RESOURCE_EXHAUSTED: i32 = 2;
pub const INTERNAL: i32 = 3;
pub const OUT_OF_RANGE: i32 = 4;

pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure { code: INVALID_ARGUMENT, message: message.into() }
    }

    pub fn out_of_range(message: impl Into<String>) -> Failure {
        Failure { code: OUT_OF_RANGE, message: message.into() }
    }

    pub fn exhausted(message: impl Into<String>) -> Failure {
        Failure { code: RESOURCE_EXHAUSTED, message: message.into() }
    }
}

/// TandemText: borrowed for the length of a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    data: *const c_char,
    size: usize,
}

impl Text {
    /// # Safety
    /// `data` points to `size` readable bytes that outlive the result, or `size` is 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.size) }
    }

    /// # Safety
    /// As for `bytes`.
    pub unsafe fn utf8<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(unsafe { self.bytes() }).map_err(|error| {
            Failure::invalid(format!("{what} is not UTF-8 at byte {}", error.valid_up_to()))
        })
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TextSink {
    write: extern "C" fn(*mut c_void, *const c_char, usize),
    to: *mut c_void,
}

impl TextSink {
    pub fn write(self, text: &str) {
        (self.write)(self.to, text.as_ptr().cast(), text.len());
    }
}

/// Sentences for a log line.
#[derive(Default)]
pub struct Warnings(pub Vec<String>);

impl Warnings {
    pub fn add(&mut self, message: impl Into<String>) {
        self.0.push(message.into());
    }

    pub fn give(&self, sink: TextSink) {
        if !self.0.is_empty() {
            sink.write(&self.0.join("; "));
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IdSink {
    write: extern "C" fn(*mut c_void, *const u32, usize),
    to: *mut c_void,
}

impl IdSink {
    pub fn write(self, ids: &[u32]) {
        (self.write)(self.to, ids.as_ptr(), ids.len());
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TokenSink {
    write: extern "C" fn(*mut c_void, u32, *const c_char, usize, u32),
    to: *mut c_void,
}

impl TokenSink {
    pub fn write(self, id: u32, bytes: &[u8], flags: u32) {
        (self.write)(self.to, id, bytes.as_ptr().cast(), bytes.len(), flags);
    }
}

thread_local! {
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `body`; its failure, or a panic inside it, becomes a code and a message for `error`.
/// A panic's own message is dropped: it may quote the text that was being worked on.
pub fn guarded(error: TextSink, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let place = info.location().map_or(String::new(), |place| {
                // The last parts name the crate's file; what is before them names this machine.
                let parts: Vec<&str> = place.file().rsplit(['/', '\\']).take(4).collect();
                let file = parts.into_iter().rev().collect::<Vec<_>>().join("/");
                format!(" at {file}:{}", place.line())
            });
            PANIC_PLACE.with(|cell| *cell.borrow_mut() = place);
        }));
    });
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(failure)) => {
            error.write(&failure.message);
            failure.code
        }
        Err(payload) => {
            let place = PANIC_PLACE.with(|cell| cell.borrow().clone());
            // Dropping a payload may panic as well; what that leaves is leaked.
            if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
            error.write(&format!("panic{place}"));
            INTERNAL
        }
    }
}
