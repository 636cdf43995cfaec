// Runs a linked program from Rust: rustc program.rs -C link-arg=./model.so
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::null_mut;

#[repr(C)]
struct DType(u8, u8, u16);
#[repr(C)]
struct Tensor { data: *mut c_void, device: [i32; 2], ndim: i32, dtype: DType, shape: *mut i64, strides: *mut i64, offset: u64 }
#[repr(C)]
struct Managed { tensor: Tensor, context: *mut c_void, deleter: extern "C" fn(*mut Managed) }

extern "C" {
    fn framefuse_load(error: *mut c_char, size: usize) -> *mut c_void;
    fn framefuse_free(model: *mut c_void);
    fn framefuse_run(model: *mut c_void, inputs: *const *const Tensor, count: c_int, outputs: *mut *mut Managed, outs: c_int) -> c_int;
    fn framefuse_error(model: *const c_void) -> *const c_char;
}

fn main() {
    let mut numbers: Vec<f32> = (0..32).map(|k| (k % 17) as f32 / 8.0 - 1.0).collect();
    let (mut shape, mut output) = ([2i64, 16], null_mut());
    let data = numbers.as_mut_ptr() as *mut c_void; // 2, 32 bits, 1: float32
    let input = Tensor { data, device: [1, 0], ndim: 2, dtype: DType(2, 32, 1), shape: shape.as_mut_ptr(), strides: null_mut(), offset: 0 };
    unsafe {
        let model = framefuse_load(null_mut(), 0);
        assert!(!model.is_null());
        if framefuse_run(model, &(&input as *const Tensor), 1, &mut output, 1) != 0 {
            panic!("{:?}", CStr::from_ptr(framefuse_error(model)));
        }
        for k in 0..8 { println!("{}", *((*output).tensor.data as *const f32).add(k)); }
        ((*output).deleter)(output);
        framefuse_free(model);
    }
}
