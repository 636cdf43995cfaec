"""Every cost and size by which lower and fuse decide, in one place: times are nanoseconds on one thread of a CPU.

"Measured" gives the speed with other values as a multiple of that with this one, in three runs of
``python -m benchmarks kernels --costs`` on one core of an AMD EPYC whose caches other work used too. "Fitted" numbers
came from timing kernels; "chosen" ones follow from what they stand for (registers, caches, warps) or bound the time
that compiling takes, and were not measured. Costs of operations are a column of ``ir/ops.py``, what a launch costs
stands with each device (``ir/target.py``), and how many points a program of a GPU holds, which is decided when the code
is made, in ``codegen/triton/blocks.py``.
"""

# ---- lowering: what kernels compute, and what is a call of torch's. Chosen, but for what says otherwise.
# Elements of a matrix from which a GPU multiplies it with a vector by a kernel of ours. Measured on an H100, ms of the
# library and of a sum over rows: float32 of 8192 x 8192 0.114, 0.090; 256 x 131,072 0.051, 0.051; 4096 x 333 0.011,
# 0.009; 256 x 4096 0.015, 0.009; bfloat16 of 16384 x 4096 0.050, 0.046; 1024 x 4096 0.017, 0.006.
MATRIX_VECTOR = 1 << 20
# Elements of a window up to which a kernel reads each by itself; a larger one is the library's: 3 x 3 x 3 is within it,
# and twice that still has a register for each.
POOLED_ELEMENTS = 64
# Elements of a row of windows of one size from which a CPU averages by a kernel what it computes along memory, too.
# Measured on an H200: 64 x 256 pictures of 112 x 112 to 7 x 7 take the library 0.47 ms, and reading them 0.2. On an
# EPYC, times the library's speed: pictures in memory 1.1 to 5.4, channels-last ones 1.1 to 2.9, computed ones of rows
# of 28 2.9, of 8 0.4 to 0.85, of 7 0.55, of 4 0.4.
POOLED_ROW = 16
# Points of a window up to which a GPU's kernel reads them all for each result of a depthwise convolution of series, and
# of pictures. Four of 32 x 512 x 2048 float32 between two transposes, with a SiLU behind them, take 0.72 ms
# by the library (H100); of pictures it takes 2.4 ms for 3 x 7 of 32 x 64 x 256 x 256, where a kernel has 92
# instructions for an element, 0.4 ms of them, and 1.3 for eight of 5 x 5 of 16 x 768 x 768. More were not looked at,
# nor volumes (27 points: 236 instructions); 3 x 3 in bfloat16 has 68 to 82 for 41 to 48.
STENCIL_POINTS = 8, 25
# Elements of a result from which the windows are copied first, so that neighbouring channels' lie side by side: what
# lies channels-last reads them together. H100, 5 x 5 with batch norm and SiLU behind it, 64 x 240 x 28 x 28
# channels-last 0.214 ms and 0.097, 64 x 480 x 14 x 14 0.105 and 0.052, 16 x 1152 x 7 x 7 0.033 and 0.036, the copy
# 0.002; contiguous 0.118 either way. cuDNN's convolution and a kernel behind it take 0.139, 0.073 and 0.046, and 0.2 to
# 0.6 s at the first call of each size.
STENCIL_TURNED = 1 << 22
# Elements of a result of 16 bits of pictures from which the library repays the time in which it looks for a kernel: of
# EfficientNet-b0 in bfloat16, 64 pictures with at most 29 M, kernels of the GPU take 2.5 ms by the library and 3.4 so
# (H100; eager 6.1), the second call 3.0 s and 0.1.
STENCIL_NARROW = 1 << 25
UNFOLDED_SIDE = 16  # points of a window along each side up to which a kernel copies windows
# Blocks of a window that a CPU's kernel joins, and of one with blocks of so many elements; measured on AVX-512, in
# eager's speed: 400 elements every 160 (5 of 80) 0.5 by the library. On a GPU as many as a cat may have, with gradients
# alone (H100: 400 every 160 by the library 0.57, now 2.9; 16 every 1 2.7; 64 every 1 0.18).
# Windows of more blocks a CPU's kernel reads each for itself.
WINDOW_BLOCKS, WINDOW_LONG_BLOCKS, WINDOW_LONG_BLOCK = 4, 16, 8
BETWEEN_DEEP = 12  # values one in the other that are computed at the elements between those that are read, too
ARGUMENT_NEAR = 4  # elements from one to the next up to which a kernel is written for that distance: vectors take all
WRITTEN_NEIGHBOURS = 4  # in memory of which one is written, up to which a row is made of groups of them
COMPLEX_TERMS = 4  # of a complex product that kernels add up one by one: a gate of two qubits
# Calls saved for each one that splits complex numbers into parts or joins them, without gradients and with. Measured
# with 2: rotary embedding with gradients 0.2 to 0.8 of eager, with these 0.9 to 3.9; its forward 1.0 to 1.7 and 1.1 to
# 4.2; exponentials of 256 x 256 1.0 and 11 to 33, quotients 1.0 and 3.3 to 4.8, squared sizes of parts 0.56 and 5.6.
COMPLEX_SAVED = 0.9, 1.2
LISTED_NUMBERS = 8  # that are written one by one into a tensor
LISTED_PLACES = 16  # of a list of positions that is written into the graph
PROBED_SYMBOLS = 8  # in sizes that are tried with other numbers: each pair of them may be tried as equal
# Into how many parts a scale of interpolation may divide an element: floats have multiples of powers of two exactly.
FRACTIONS = 64

# ---- time. Fitted; measured since, an element of float32: x * 2 0.055 (estimated 0.095), exp 0.17 (0.18).
NANOSECONDS_PER_BYTE = 0.01  # of a stream through the second-level cache
# Operations that cost at most the first are one instruction, which costs the second in a loop.
SINGLE = 0.06, 0.015
OVERLAP = 0.5  # of the cost of longer operations: what they add to a loop whose vectors run several at a time
LOADED = 0.05  # what an operand from memory adds to an element

# ---- sizes that are not known: chosen
UNKNOWN = 64  # what a size counts as that was not recorded

# ---- grouping: what is computed where. Chosen, but for what says otherwise.
KERNEL_CELLS = 400  # of one kernel: more of them compile slowly and spill registers
KERNEL_ROOTS = 8  # values that one kernel leaves in memory
CAT_PIECES = 16  # of a cat that a kernel computes: it chooses among them at each element
SIBLINGS = 32  # kernels that read an operand already, the nearest ones, which are asked to compute a value too
SOURCES = 12  # operands of a value that are looked at for a kernel that reads them already
# Measured, exp read by two kernels: 0.0 1.1, 100 1.1 to 1.3.
KEPT_ABOVE = 0.3  # a value of several consumers that costs more is assumed to be kept in memory
TWICE_IN_ONE, TWICE_IN_TWO = 0.3, 0.15  # above this a value is not computed twice in one kernel, in two kernels
TWICE_LOADS = 2, 1  # and above so many loads
TWICE_CELLS = 4  # and in more places of one kernel
# What a CPU computes in two kernels from narrower elements, instead of writing and reading more than them: bytes of the
# value, and what it may cost. Measured by two runs of backward alone, of batch norm and relu, bfloat16, channels-last,
# 8 x 256 x 56 x 56: never 0.5, 0.15 0.7; of 8 x 64 x 56 x 56: never 0.5, 0.15 0.9.
WIDENED = 1 << 20, 0.3
CPU_WINDOW, GPU_WINDOW = (64, 0.12), (64, 0.6)  # places of a window, and what an element costs that is computed at each
# Times as many values as each piece of a cat reads, up to which a GPU reads those of all pieces at each point. Measured
# on an H100, with 0, 1.75 and 9: layer norm of rotated halves of 65,536 x 1024 0.221, 0.220 and 0.202 ms, of two inputs
# joined 0.225, 0.224 and 0.225, a softmax of pairs 0.194, 0.195 and 0.196, six pieces of two inputs 0.222, 0.223 and
# 0.224, a stack of five of the same two inputs 0.280, 0.280 and 0.094.
GPU_SHARED = 3.0
GPU_UNROLLED = 4  # pieces of a cat up to which one kernel computes all of them at each point of a piece; chosen
# What an element costs that is read at positions, up to which it is not kept between. Measured on an H100, with 0, 1
# and 9: bilinear interpolation by a half 0.62, 0.24 and 0.24 ms, to twice the size 0.52, 0.25 and 0.26, bicubic 1.26,
# 1.19 and 1.19; a bilinear sampling by gathers 0.51, sums of three rows 0.13 and rows read twice 0.08 with each.
GPU_PASSED_ON = 1.0
# Loads from which a window is not computed in the loops of a reduction, or in a kernel of so many values: chosen.
# Structural similarity of 96 pictures of 256 x 256 by five windows of 7 x 7, one kernel: 8.3 ms, eager 1.3 (H100).
GPU_WIDE_WINDOW, GPU_WIDE_WINDOW_CELLS = 20, 160
# What a GPU computes again in each kernel that reads it, instead of writing it: its bytes, what it may cost, and what
# it may cost where a reader waits for memory. Not measured but counted: layer norm both ways of 16384 x 4096 moves 0.94
# GB in place of 2.0 in bfloat16, and 1.9 in place of 2.1 in float32. More from narrower elements where a reader waits
# for memory anyway: a softmax of 300 rows of 300,000 in float16 0.46 and 0.26 ms (H100). Not from as wide ones: a U-Net
# with softmax in float32 0.98 and 1.40 ms; but of 110 others 0.983 of the time with 1.0 in place of 0.3, a U-Net of
# another size 2.49 and 2.40, a group norm of sigmoids 1.44 and 1.25.
GPU_AGAIN, GPU_AGAIN_TIME, GPU_AGAIN_WAITING = 1 << 20, 0.3, 1.0
RARE = 64  # elements that read one of a smaller value, from which its own arithmetic costs them nothing
ANYWHERE = 0.2  # below this a value that loads nothing is computed wherever it is used
REPEATED = 0.5  # up to this a value is computed again at each point of loops that it does not vary along
# Nanoseconds of an operation from which a CPU does not repeat it so. Measured, beside 100: rows times exp of a row of
# 512 2.2, sigmoid 2.8, over a root 2.5, over a row 1.2, rotary positions 1.8, norms and softmax across memory 1.0.
CPU_REPEATED = 0.12
# Nanoseconds of an operation, readers of its result and elements of a reduction from which a GPU does not repeat it at
# each of these. Counted, a softmax of 64 channels behind a group norm, softplus, elu and softplus (code for an H100):
# 225 instructions for an element with the root of its group's variance, 211 without. Nor does it make rows of so many
# elements for a reduction of so few (H100, transposed convolution, group norm of four channels each and relu to
# 64 x 64 x 255 x 255 float32: 3.45 ms by rows, 2.36).
GPU_SMALL = 0.2, 64, 1 << 22
# The same of a GPU, of a value that reads one or two elements and is computed twice, as each half of a cat at all its
# points. Rotary positions by halves, bfloat16, 8 x 32 x 2048 x 128 on an H100: 0.24 ms in three kernels, 0.19 in one.
GPU_TWICE = 1.0
# Measured, exp read by two kernels: 0 0.85 to 1.2, 1e9 1.0.
REPEATED_WORK = 500  # of repeating a value: less of it costs less than another kernel
# Measured, rows of 60 that are each shifted by one more element: 0.1 0.2, 0.3 and 1.0 1.0.
DIVISION = 0.3  # of a position in a vector loop, by a number that is known or not
# Measured, the same: 0.0 1.0 to 1.2, 1.0 0.3.
KEPT_ELEMENT = 0.3  # what an element costs that is kept in memory and read from there
ACROSS = 64  # points of a row up to which a kernel may write a value across its memory
WHOLE_PIECES = 4  # up to so many new pieces, of which an input is made as a whole, are written by one kernel; chosen
VIEW = 1500  # what a call costs that makes a view
# Measured, renorm of every second column of 128 x 256: copied 0.2, seen 1.0; take of 8 elements of it 1.0, 0.05.
READS_FEW = 8  # elements of an operand for one of the results of a call that may read but a part of it

# ---- grouping: reductions. Chosen.
# Fewer rows than the first do not keep threads busy, and the second is how many elements are worth the second kernel
# that frees the first one to use them.
CPU_FEW_ROWS = 4, 65536
GPU_FEW_ROWS = 128, 1 << 20
# Elements above which few rows are not walked by two loops of different lengths, since such rows are not cut into
# chunks: the mean of 79 M differences along two axes took 73 ms by one program, by two kernels cut so 0.25 (H100).
GPU_FEW_OF_TWO = 1 << 16
# Rows so long leave the caches before they are read again, so that a kernel of their own for what is done to each
# element costs nothing, and shares better: 448 rows of 2 M float32 normalised 2.3 and 1.9 ms, H100. Fewer are few where
# one reduction reads what another gave: a kernel that holds both reads a row twice, not four times (softmax of 1024
# rows of 131,073: 1.0 and 0.8 ms).
GPU_LONG_ROW = 1 << 17
GPU_FEW_LONG_ROWS, GPU_FEW_LONG_ROWS_TWICE = (4096, 1 << 20), (1024, 1 << 20)
# The same of a softmax, whose largest element and sum are found together: the row is read twice, not three times. By
# chunks 512 rows of 200,003 took 0.79 ms (eager 0.60); two programs keep a unit busy. Fewer rows are cut into parts
# that are read once, so that such a row is read twice as well: 160 of 200,000 0.154 ms (eager 0.207).
GPU_FEW_SOFTMAX_ROWS = 256, 1 << 20
# Neighbours in memory that a row of long rows has to have together where it is written, or the reduction that its
# elements need has a kernel of its own, and a tile with two sides writes them.
GPU_ALONG = 16
# Elements along memory that a reduction reads together, below which what lies across is reduced first, for all columns
# at once; of a CPU and of a GPU. Measured, group norm of 4 x 64 x 48 x 48 channels-last, runs of 8: 0 0.2. Of a GPU
# what lies channels-last alone: a convolution of 64 x 128 x 126 x 126 with group norm, hardswish of tanh and logsumexp
# takes 1.4 ms so on an H100, by torch.compile 1.9.
SHORT_RUN = 64, 64
RUNS = 8  # and how many times their number of points must lie across: chosen, so that what is left to reduce is small
COLUMN = 1024  # rows up to which a column that is walked more than once stays in the cache
# Columns from which on a GPU's kernel takes whole those of a softmax that are longer, in one sweep for the largest and
# the sum and one for the results. H100, float32, three kernels and one: softmax of 64 x 2048 x 1023 over the middle
# 1.25 ms and 0.86, 64 x 1536 x 1024 0.74 and 0.51 (bfloat16 64 x 2048 x 1024 0.41 and 0.35), 16 x 8192 x 1024 0.99 and
# 0.72, log_softmax of 4096 x 65536 1.46 and 1.13; of fewer, 8 x 4096 x 1024 0.28 and 0.28, 2 x 20000 x 5000 1.48 and
# 1.51, 32 x 2048 x 128 0.08 and 0.13. What sums and squares alone does not gain: standardised 64 x 2048 x 1023 0.67 and
# 0.91, 4096 x 65536 1.14 and 1.16, divided by the sum 64 x 3000 x 1000 0.86 and 0.96.
GPU_SOFTMAX_COLUMNS = 16384

# ---- grouping: products and what is done with them. Chosen.
PRODUCT_LEAST = 16  # rows, columns and terms of a product that may be a kernel of ours
OPERAND_CELLS, OPERAND_LOADS = 16, 2  # of a kernel that is computed again for each tile that reads its result
EPILOGUE_LEAST = 2  # rows, columns and terms of a product that the library computes with its activation
EPILOGUE_CELLS = 40  # of a kernel that is looked at

# ---- nests of all devices
# Measured, softmax of 1024 x 1024: 0.01 0.9 to 1.4, 100 0.75 to 1.2.
SAVED_ABOVE = 0.25  # what costs more is kept for the next sweep over a row
# Measured, x[..., ::2].sum(1) of 12 x 160 x 512: 0 5.0, 4 1.0.
NEAR = 4  # elements between lanes that use up each cache line, where no axis is contiguous
NESTED = 3  # operations in one statement; chosen, for who reads it
# Measured, a transpose of 96 x 96: never 1.0; of 48 x 48: 16 1.0.
CROSSED = 64  # points along both of its axes, below which memory that is read across stays in the cache anyway
# Measured, a sum of 4 M: 512 0.95 to 1.2, 1024 0.95 to 1.4, 16384 1.0 to 1.4: none is surely faster.
CHUNK = 4096  # elements in one partial sum along a vector loop
BLOCK = 32  # elements in one partial sum of each lane; chosen, for exactness
# Measured, softmax of 256 x 8192: 1024 0.6 to 1.1; of 64 x 65536: 1 << 20 0.9 to 1.0.
SCRATCH = 16384  # elements of a private row

# ---- nests of a CPU
# Measured, rows of 32 elements: 0 0.6, always 1.0.
CPU_NARROW = 64  # points in the inner loop below which decoding joined outer axes by division would show
# Measured, pixel_shuffle by 2 of 4 x 8 x 32 x 32 and 3 x 128 x 128 turned into 128 x 128 x 3: 1 0.3, always 1.0.
CPU_LEAST = 4  # points of an inner loop below which its turns cost more than its vectors save
# Measured, float32: a turn of an inner loop that fills no vector, an element whose position is found by division, and
# what each operand adds that does not lie in the order of the loop. y added to rows of 1, 2, 5 and 13: never 0.4, 0.85,
# 2.1, 5.0; sin before it 0.17, 0.37, 0.9, 2.1; gelu of tanh of that 0.05, 0.1, 0.26, 0.65.
CPU_ROW, CPU_FLAT, CPU_GATHER = 1.1, 0.2, 0.3
# Measured, float32: what adding up the lanes costs a row, and an element that lanes of different rows load or store.
# Rows of 3, 8, 16 and 32, time along them by that across: sum 1.7, 0.9, 0.46, 0.31, argmax 20, 6.6, 4.0, 2.5, softmax
# 2.0, 0.86, 0.45, 0.33, logsumexp 11, 4.8, 2.5, 1.6.
CPU_FOLD = {"sum": 0.6, "any": 1.0, "all": 1.0, "amax": 3.7, "amin": 3.7, "argmax": 29.0, "argmin": 29.0}
# Rows whose logarithms, or what else costs a row so many nanoseconds, are one loop, from how many on, and the points of
# the longest of them. Measured, log_softmax of 1000 rows of 16, 20, 24, 32, 48 and 60 float32, eager's time over ours,
# without and with loops over 16 and 64 rows: 0.64 0.94 1.08, 0.85 1.14 1.18, 0.83 1.09 1.17, 0.93 1.05 1.09, 0.88 1.07
# 1.10, 0.96 1.19 1.20; of 8 rows 1.7 and 1.7, of 16 1.5 and 1.6; of 1000 rows of 256 1.76 and 1.77.
CPU_BLOCK, CPU_BLOCK_LEAST, CPU_BLOCK_TIME, CPU_BLOCK_ROW = 64, 8, 0.17, 256
# Rows from which on they are lanes where neither they nor their elements are neighbours. Measured, the norm of 2 rows
# of every fifth of 100,000 float32: 1 0.05 of the speed.
CPU_FEW_LANES = 8
CPU_LANE_LOAD, CPU_LANE_STORE = 0.22, 0.45  # fitted
CPU_ALONE = 3.0  # times as long a scalar's operation takes as its share of a vector's: it waits; chosen
CPU_VECTOR = 64  # bytes of a vector; chosen
# Arithmetic of a point up to which a short loop that writes elements apart is no vector loop. Measured, every second
# element doubled in place in rows of 5 and 7: 0 0.21 and 0.29 of the speed.
CPU_LIGHT = 0.3
# And up to which a piece of fewer than CPU_LEAST points is no vector loop. Measured, borders of one element beside rows
# of 7 to 58, in eager's speed: reflected 0.7 to 0.8 and 0.9 to 1.1, joined 2.3 to 3.3 and 2.8 to 3.7; below a gelu 1.2
# and 0.8.
CPU_SINGLE = 0.1
CPU_MANY = 8  # turns of a loop that share well between threads; chosen
# Measured, float32 in 257 rows of 101 columns, in the speed of torch.cat: 5 to 10 pieces side by side 0.06 to 0.16 with
# 3, 1.0 to 1.2 with 15; below each other, as one loop, 0.9 to 1.3. The time to compile does not grow that way.
CPU_CAT_PIECES = 15  # ends between pieces of a cat up to which each piece has a vector loop of its own
# Of a cat that only moves what is in memory, on a GPU: pieces up to which a kernel is as fast, and the bytes of an
# element, with those of which the rows of all pieces are multiples. Measured, torch.cat's speed over a kernel's on an
# H100: 12 pieces of float32 along the first axis 1.6, of bfloat16 along the last 4.7; 3 pieces of 256 x 256 x 64: bool
# 1.6 to 3.5, bfloat16 1.1 to 1.5, float32 and int64 1.0; of 101 bfloat16 to a row 0.6.
GPU_CAT_PIECES, GPU_CAT_NARROW = 4, (2, 16)
# So many cats of which each has the pieces of the one before grow in one memory: chosen. DenseNet-201 of 10 pictures on
# an H100: 7.4 to 8.1 ms, and 13.0 to 13.5 where each cat is computed or joined anew (kernels 3.25 and 4.99; eager 16
# to 24); DenseNet-121, one picture: 3.9 to 4.0 and 4.1 (1.41 and 1.43; eager 9.6 to 14).
GROWN_CATS = 4
# Pieces of a cat of parts of one value that follow no one rule: each end is two more operations of an index; chosen.
GPU_RULELESS = 3
CPU_SHORT_CAT = 16  # points of a cat along an inner loop up to which each has a loop over rows of its own; chosen
CPU_NEIGHBOURS = 4  # and that are written by one loop over rows, where they are neighbours in memory; chosen
CPU_NEIGHBOUR_VALUES = 64  # values at all of them together up to which a loop over rows is written so; chosen
CPU_PIECES_TILE = 2048  # points of a loop along pieces that threads share: each has the part of each piece; chosen
# Chosen: to measure it takes two cores with no other work.
CPU_STAGED_ABOVE = 100_000  # of work from which two threads repay a second kernel
# Measured, column sums of 48 x 65536: never 0.7 to 0.8; of 24 x 65536: 8 1.0.
CPU_TILED_ABOVE = 32  # rows of a sum across memory that fit the registers of a plain loop
# Measured, column sums of 4096 x 2048: 128 0.5 to 0.8, 256 0.8 to 1.0, 1024 0.9 to 1.3, 2048 1.1 to 1.5: it may be
# too small where the second-level cache is large.
CPU_TILE = 512  # columns whose running results stay in the first-level cache
# Columns up to which rows lie below each other in the tile. Measured, sums of 2, 3 and 4 columns of 30,000 rows of
# float32: 0 0.15 to 0.3 of the speed.
CPU_NARROW_COLUMNS = 64
# Elements of the rows that lie so. Measured, sums, largest and means of 2 to 48 columns of 1000 to 100,000 rows in 5
# dtypes: 64 1.0, 96 1.05, 192 1.02 to 1.12, 384 1.06 to 1.1 times the speed of 512, of which 8 rows of int64 lie at one
# place of the first-level cache.
CPU_TOGETHER = 384
# Measured, sums and largest of 16 to 64 columns of float32, 30,000 to 300,000 rows: 1.1 to 2.6 times the speed of
# CPU_TOGETHER, which reads from 8 places at once; of 20 and 48 columns 0.8 to 1.0.
CPU_HELD = 256  # bytes of rows that lie so where they fill vectors
CPU_VECTOR = 64  # bytes of the largest vectors; shorter rows do not fill one; chosen
# Measured, the same: 2 0.5 to 0.6, 4 0.7 to 0.9, 16 0.7 to 1.0, 32 0.5 to 0.75.
CPU_TILE_ROWS = 8  # rows of a column tile that are summed before they join the running result
# Measured, the same: 4 1.0, 64 1.0; chosen for exactness.
CPU_TILE_BLOCKS = 16  # blocks of rows after which the running result of a float sum joins the total
# Measured, a transpose of 2048 x 2048: 16, 32 and 128 1.0 to 1.1.
CPU_SQUARE = 64, 64  # points of a tile along a transposed operand's memory and along the result's
CPU_STRIP = 128  # and along the operand's memory where the result's rows are short; chosen
# Rows whose operands are turned together, and points of the longest of them. Measured, layer norm of 256 x 256 that lie
# across: never 0.46 of eager.
CPU_TURNED, CPU_TURNED_LONG = 16, 2048
# Bytes of an element up to which tiles lie along what is written, though most operands lie across it, and of rows from
# which they do of wider ones. Measured, a + b * c of transposed matrices written row by row, in eager's speed: float32
# of 256 x 256 0.59 along the operands and 2.1, 8 x 60 x 60 1.7 and 2.2; float64 0.72 and 1.05, 2.1 and 1.5.
CPU_WRITTEN_SIZE, CPU_WRITTEN_ROW = 4, 2048
# Elements of a result, and points along what it reads and along itself, from which reductions of what lies across are
# kernels apart. Measured, in eager's speed without and with: group norm of turned pictures 0.2 to 0.8 and 1.8 to 3.8,
# layer norm of these 0.2 and 3.9, log_softmax along the first dimension 0.57 and 1.7, with its gradient 0.74 and 1.4.
CPU_CROSSED_ELEMENTS, CPU_CROSSED_SIDE = 1024, 8
CPU_CROSSED = 4  # points along both sides from which an operand is transposed: those of the least block; chosen
# Measured on AVX2, torch.eye(k) added to 5000 matrices of k x k, computed in each in place of read from memory, k 2, 3,
# 5, 8, 12, 17, 24: 0.4, 0.3, 0.15, 0.25, 0.3, 0.4, 1.2.
CPU_TABLE_ROW, CPU_TABLE = 20, 1024  # points of a row and of all rows that positions alone decide

# ---- nests of a GPU. Chosen; `python -m benchmarks kernels --device cuda` times what they come to.
GPU_TILE = 1024  # points of a tile of pointwise work
# Points of a tile with two sides that reads so many elements of one operand for each, as a window does. Measured on an
# H200, with tiles of 1024 and of 256, eager's time over ours: avg_pool3d(2) 0.63 2.1 (bfloat16 0.63 2.3),
# avg_pool2d(3, 2) 0.71 2.3 (0.70 2.5), max_pool2d(3, 2, 1) 0.76 1.6 (0.81 1.6), with their gradients 0.93 1.5, 1.7
# 2.0 and 1.2 1.5.
GPU_WINDOW_TILE, GPU_WINDOW_LOADS = 256, 4
# The same of a window of so many elements. Measured on an H100, with 256, 512 and 1024: max_pool2d(3, 1, 1, 2) 0.65,
# 0.52 and 0.51 ms, max_pool2d(3, 2, 1) 0.28, 0.25 and 0.36; but avg_pool2d(5, 2, 2) 0.32, 0.49 and 0.87.
GPU_NINE_TILE, GPU_NINE = 512, 9
GPU_TILE_LEAST = 256  # below which positions are decoded for each element instead,
GPU_NARROW = 16  # and likewise for rows shorter than this
# Elements between those that neighbours read, and the bytes of an element, for which one loop over all elements is
# faster than a tile; steps of 2 were not measured.
GPU_SPREAD, GPU_SPREAD_BYTES = range(3, 8), 4
# Points of a side of two axes, the last of which is short: of fewer than GPU_RUN the side is one, however much of it is
# empty; below GPU_RUN_LEAST positions are decoded for each element.
GPU_RUN, GPU_RUN_LEAST = 64, 16
GPU_FILLED = 0.7  # of a tile's points that should exist
GPU_CROSSED = 8  # points along both of its axes from which memory that is read across is read by a tile with two sides
GPU_SQUARE = 64  # points along both sides of a tile that is read or written across memory
GPU_WINDOW_SQUARE = 32  # and of one that reads GPU_WINDOW_LOADS elements of an operand for each; chosen
# Elements of a window that overlaps the next one up to which a thread goes over them alone. Measured on an H100, over
# 64 x 65,536 float32, in eager's speed: largest of 16 2.2, of 64 1.5; means of 100 as rows 0.29.
GPU_WINDOWED = 256
GPU_JOINED_BELOW = 512  # points of an inner loop below which it is joined with the loops around it, by division
GPU_PROGRAMS = 8  # that keep a unit of a GPU busy
GPU_PROGRAMS_OF_LONG_ROWS = 32  # of which the last ones would run alone for long
GPU_ALONE = 16384  # elements that one program may as well reduce by itself
GPU_CHUNK = 2048, 256  # least elements that one program of several takes of a reduction: along memory, and across it
# Of them along memory: one tile, without turns. Half of it where a position is looked for (H200, argmax of 67 M
# elements of float32, int64 and bfloat16, eager's time over ours 0.93, 0.98 and 1.01, with chunks of 8192 0.83, 0.80
# and 0.91).
GPU_CHUNK_MOST = 8192
# Elements of which parts of a row of a softmax are multiples, so that each begins where wide loads can; chosen.
GPU_PART = 32
# Scans of rows that are too few to keep units busy go in segments: of the first number of elements at least, or of the
# second where rows are neighbours; rows of so many of these, and programs for each unit.
GPU_SEGMENT, GPU_SEGMENTS, GPU_SEGMENT_PROGRAMS = (2048, 64), 8, 16
# Programs for each unit from which on rows stay whole, and how many neighbouring ones a program takes: measured on an
# H100, sums of 64 x 1000 x 500 over the middle from the end on 0.140 ms, in segments 0.184, masked 0.149 and 0.195.
GPU_SCAN_PROGRAMS, GPU_SCAN_LANES = 4, 32
GPU_COLUMNS = 8  # neighbouring columns from which on a reduction along another operand's rows takes several together
# and how many elements of a row may read one of that operand. Chosen: with more its reads are few.
GPU_COLUMN_SHARE = 8
GPU_LANES = 64  # neighbouring columns that one program reduces together

# ---- layouts: of convolutions and of what is around them. Nanoseconds for each byte, of a CPU and of a GPU; measured
# on one thread of an AMD EPYC (torch 2.13) and on an H100 (torch 2.11, cuDNN 9.19): 44 and 70 convolutions.
COPIED = 0.12, 0.0008  # of a value that is copied in the other order
TURNED = 0.08, 0.00005  # what a kernel takes longer that reads a value in one order and writes another in the other one
# The same of five dimensions: transposed convolutions of 1.9 GB with arithmetic, group or instance norms behind them
# take 4.5 to 6.0 ms on an H100 with all contiguous and 2.9 to 4.5 channels-last.
TURNED_VOLUME = 0.08, 0.0003
# The same where the kernel reduces what it reads: the gradients of an instance norm of 16 x 64 x 224 x 224 float32 from
# a contiguous picture and a gradient channels-last took 1.85 ms on an H100, 0.43 where both lie alike.
TURNED_REDUCED = 0.08, 0.0035
REDUCED_ACROSS = 0.01, 0.0003  # what a reduction takes longer across memory,
# one over groups of channels with all their points, of 32 bits and of 16: on an H100 group norms of 0.5 to 1.9 GB of
# float32 behind convolutions take 1.8 ms contiguous and 1.4 channels-last, 3.2 and 2.5, 6.0 and 4.4; of bfloat16 1.08
# and 1.30;
REDUCED_GROUPS, REDUCED_SHORT_GROUPS = (0.3, 0.0001), (0.3, 0.003)
# and one that leaves the channels, of batch norm: a step of ResNet-50 in bfloat16, 128 pictures, has kernels of 18.7 ms
# on an H200 where all lies channels-last, of 28.3 with 0.0003 here and 0.0001 for products.
REDUCED_COLUMNS = 0.01, 0.00003
JOINED = 0.25, 0.0  # a cat of more than CPU_CAT_PIECES pieces along the channels, channels-last
# What a convolution takes longer, for each byte of its operand and result, with all contiguous: libraries turn what
# their matrix units read, and turn back what they write. A product of channels alone is taken as it lies, which is slow
# where elements of 16 bits begin at odd places (256 to 256 channels of 32 x 56 x 56, gradient of the input: 0.15 ms and
# 0.05 on an H100). "exact" are those of a GPU in float32 that may not round to TF32; below 0: what takes longer
# channels-last.
CONVOLUTION = {
    "plain": (0.1, 0.00075), "product": (0.05, 0.0001),
    "narrow product": (0.05, 0.0004), "grouped": (0.03, -0.0004), "grouped in training": (0.03, 0.00075),
    "depthwise": (0.1, 0.00075), "wide depthwise": (0.1, -0.006), "large depthwise": (0.1, -0.03),
    "exact": (0.1, -0.001), "few channels": (0.1, -0.001),
}  # fmt: skip
# The same of float16 on a CPU, forward and each gradient: it multiplies contiguous ones point by point. 3 x 3,
# contiguous and channels-last, 4 x 8 x 16 x 16 0.35 ms and 0.24, of the input 0.28 and 0.44, weight 0.12
# and 0.23; 1 x 32 x 16 x 16 1.5 and 0.3, 0.8 and 1.2, 0.36 and 0.73; 2 x 64 x 28 x 28 32 and 6, 18 and 28, 6 and 17;
# products of 4 x 16 x 28 x 28 0.47 and 0.81, 0.34 and 0.55, 0.09 and 0.32; depthwise 0.48 and 2.9, 0.85 and 2.4, 0.25
# and 2.1. Groups of 4 channels 1.1 and 1.5, of 16 7.2 and 2.8.
CONVOLUTION_FLOAT16 = {"plain": (3.0, -4.0), "product": (-1.6, -1.0), "depthwise": (-12.0, -8.0)}
GROUPED_FLOAT16 = 8  # channels of a group up to which it is as slow as a product
# Nanoseconds of a step of training for the time in which a GPU's library first looks for a kernel of a depthwise
# convolution channels-last, once for each size and process, of which a thousand steps or so are to repay it: of the
# convolution, of its gradient of the picture, and of that of the weight, by the bytes of an element. cuDNN 9.19 on an
# H100, 14 sizes: 0.2 to 0.3 s, 0.23 to 0.73, and of 16 bits 0.5 to 1.9, under a lock; contiguous nothing. In bfloat16
# what turns gains is 3.6 times what CONVOLUTION says (3 x 3 of 32 x 144 x 56 x 56 with gradients 0.15 ms and 0.62; in
# float32 0.19 and 0.62). Second call and steps with none contiguous, and with all: ghostnet, float32, 32 pictures 10.7
# s and 29 ms, 3.6 and 27; rexnet, 128, 4.5 and 51, 3.9 and 50; EfficientNet-b0, bfloat16, 128, 12.7 and 29, 3.0 and 43,
# where all of 16 bits wait for 10 s so that each step takes 14 ms less.
DEPTHWISE_WAIT = {4: (2.5e5, 4e5, 0.0), 2: (7.5e4, 1.2e5, 3e5)}
# Points of a window up to which the weight's gradient of a depthwise convolution is fast channels-last in float32, too:
# 7 x 7 of 32 x 96 x 56 x 56 on an H100 2.4 ms and 0.65 contiguous, 3 x 3 0.04 and 0.15.
WIDE_WINDOW = 25
# Points up to which a depthwise convolution has a kernel of its own channels-last: 7 x 7 of 32 x 192 x 32 x 32 on an
# H100 0.27 ms contiguous and 0.15 (bfloat16 0.24 and 0.07), 9 x 9 0.38 and 1.95 (0.41 and 1.95), 11 x 11 0.46 and 2.8.
# Of 40 in groups the median takes as long in both layouts, with pictures of 50 MB and more 0.8 of the time contiguous.
LARGE_WINDOW = 49
# Windows that are not square, or of even sides, have none: 2 x 2 of 32 x 64 x 128 x 128 0.35 ms contiguous and 1.1,
# 4 x 4 0.53 and 2.6, by steps of two 0.14 and 0.98, 3 x 5 0.52 and 2.5.
# Channels from which on float32 that rounds to TF32 has a kernel channels-last, for some numbers up to FEW_CHANNELS,
# and for fewer in what is made. H100, 32 pictures of 128 x 128, 1 to 64 channels 0.09 ms contiguous and 0.18, 3 to
# 64 0.12 and 0.09, 6 to 32 0.10 and 0.19, 8 to 24 0.12 and 0.16, 12 to 24 0.16 and 0.29, 16 to 64 0.24 and 0.12, 64 to
# 3 0.30 and 1.8; 1 to 2 of 512 x 512 0.14 and 0.59; of volumes 4 to 32 0.08 and 0.31, 8 to 16 0.19 and 0.13, 8 to 24
# 0.38 and 0.52.
FEWEST_CHANNELS = 4
# Channels of pictures, and of volumes, from which on contiguous float32 rounds to TF32, too: of fewer cuDNN multiplies
# all digits contiguous alone (an H100; from the largest 3e-7 of it, channels-last 3e-4), to which eager's results are
# nearer. What is slower by it: 3 to 64 of 16 x 224 x 224 0.35 ms and 0.31, 11 x 11 by steps of 4 0.81 and 0.41, 3 to 16
# of volumes 0.45 and 0.30. Of volumes 22 of 64 convolutions of 3 x 3 x 3 with 4 to 16 channels have all digits
# contiguous alone, mostly those that make 32 or 64, of 96 with 24 to 128 none, nor of 144 of 5 x 5 x 5 with 8 and more;
# of 1 x 1 x 1 one of 144 with 8 and more. What that costs: 16 to 64 of 16 x 24 x 48 x 48 with what follows 1.2 ms and
# 0.7. For where the library cannot be asked. It is on a GPU: of 786 convolutions 73 of 394 plain ones, 42 of 156
# transposed ones, 10 of 79 in groups and 3 of 78 of volumes are exact contiguous alone, by no rule that sizes show, and
# 119 and 75 of 394 gradients; kept contiguous they take 1.02 times as long in the geometric mean, those in groups 4
# times (gradients 2.6), of depthwise ones neither layout rounds.
EXACT_CHANNELS = 9, 17
# Channels from which on windows with holes, by steps of one, are convolved channels-last on a GPU. H100, float32 of
# 64 x 64 and 128 x 128 pictures, channels-last of contiguous, 16, 32, 64, 128 and 256 channels: 3 x 3 0.66, 0.54, 0.50,
# 0.55 and 0.57 of the time, 5 x 5 0.81, 0.62, 0.72, 0.83 and 0.86; by steps of two 0.37 to 0.92, at worst 3.0 times;
# four volumes 0.64 to 0.86.
SPREAD_CHANNELS = 32
# Elements of a single picture of float32 up to which torch's convolution on a CPU multiplies copies of the windows, if
# one of their sides is so long at most: rules of torch. Nanoseconds for each point of each window, channels-last, and
# for each of its channels, contiguous. Measured on one thread, 3 x 3, contiguous and channels-last: 1 to 1 channels of
# 98 x 98 17 us and 270, 3 to 16 of 64 x 64 62 and 157, 16 to 16 of 28 x 28 60 and 68, 64 to 1 of 14 x 14 30 and 16.
# Channels-last it copies the weight in each call: 128 to 4 of 12 x 12 109 and 59, 40 to 40 of 20 x 22 208 and 222,
# 256 to 256 of 6 x 6 0.78 ms and 0.95.
CPU_SINGLE_PICTURE, CPU_SINGLE_WINDOW = 20480, 3
CPU_WINDOW_COPY = 3.0, 0.15
CONVOLUTION_CALL = 0, 4000  # nanoseconds of a call with all contiguous: launches of what turns
OWN_CONVOLUTION = 0.2  # of one that an exported program computes itself: it copies contiguous pictures channels-last
WEIGHT = 0.2, 0.0008  # of a contiguous weight that a library turns channels-last,
WEIGHT_CALL = 0, 4000  # and nanoseconds of each call that does
CONVOLUTION_BACKWARD = 0.5, 1.0  # of that for each of the two convolutions of a backward
FEW_CHANNELS = 16  # elements of a vector: a library that steps over points of fewer may write beyond their memory
# What other calls take longer, for each byte that they read and write, with all contiguous; below 0: channels-last.
WINDOWS = {
    "max_pool2d": (1.0, -0.00016), "max_pool2d_with_indices": (1.0, -0.00016), "max_pool2d_kept": (1.0, -0.00016),
    "max_pool2d_with_indices_backward": (0.0, 0.0), "avg_pool2d": (0.5, -0.0007), "avg_pool2d_backward": (0.0, 0.0),
    "adaptive_avg_pool2d": (0.1, -0.0007), "interpolate": (0.07, -0.00065), "batch_norm": (0.15, 0.0005),
    "batch_norm_kept": (0.15, 0.0005),
}  # fmt: skip
# Bytes that a batch norm in training reads and writes on a CPU from which on copies in the other order cost more than
# they save, and its price for each byte from there on. Measured on one thread, without gradients, contiguous of turned:
# alone 1.6 MB of picture 0.95 to 1.2, 3 to 26 MB 1.0 to 2.3, added to its input 0.9 to 1.1 and 1.0 to 2.0, in a relu
# 0.7 to 1.1 and 0.9 to 1.8; between a product of channels and a relu it is turned with either price.
LARGE_NORM = 6_000_000, 0.09
# And its price in 16 bits, of which the library reads contiguous pictures by vectors. Measured, contiguous beside
# turned, 0.5 and 2 MB of bfloat16 and float16: 0.35 to 0.6 of the time, 0.5 to 0.85 with a relu behind it.
SHORT_NORM = -0.08
# Channels below which such a call on a CPU is slower channels-last, and below which either may be: its vectors lie
# along them. Contiguous, of channels-last, on one thread of an EPYC, 2 x 112 x 96 points of 1, 3, 6 and 16 channels:
# max_pool2d 0.4 0.6 1.4 8.3, avg_pool2d 0.3 0.7 1.2 4.0, nearest 1.0 0.3 0.8 1.8, area 0.4 0.9 1.4 4.9.
CPU_WINDOW_CHANNELS = 4, 8
# What batch norm in training takes longer by the library than by kernels of ours, for each byte of its input, of a CPU
# and of a GPU; below 0 the library is faster. Measured on one thread (torch 2.13), with a relu behind it, forward and
# backward: 12 shapes and layouts in two dtypes 0.7 to 2.7 times, in the middle 1.3;
# on an H100 (torch 2.11) steps of ResNet-50 1.14 times in float32 and 1.17 in bfloat16 under autocast.
OWN_NORM = 0.1, 0.0003
# On a CPU pictures of 16 bits that lie channels-last are the library's from so many bytes on: 3 shapes of 3 to 13 MB
# took 0.95 to 1.35 times its time, 5 of less 0.7 to 0.9.
LIBRARY_NORM = 2_500_000
# Nanoseconds that other layouts must save: chosen on a CPU. On a GPU what turns is launched by the host, for which
# small programs wait: conv2d and relu of 1 x 64 x 64 x 64, a step of training, took 1.1 of eager's time on an H200 with
# 1000.
LAYOUT_GAIN = 1000, 9000

# ---- products of 16 bits on a GPU whose rows begin at odd places. Measured on an H100 (torch 2.11), 30 sizes:
# 4096 x 4097 x 4096 1.09 ms and 0.19 with a multiple of 8 columns, 4098 0.49, 16384 x 16384 x 33 0.44 and 0.21.
ALIGNED_ROW = 8  # elements of which rows are a multiple where the library's fast kernels can take them
# Nanoseconds of a multiplication or an addition: where a row is odd and where it is even, and of the fast kernels.
ODD_PRODUCT, ALIGNED_PRODUCT = (7e-6, 4e-6), 1.35e-6
GPU_BYTE = 0.0004  # nanoseconds of a byte that a copy reads or writes
# Of a copy of nothing, and how many times as long the odd product must take: with 3000 and without a margin
# 2048 x 1025 x 1024 took 1.25 times eager's time, and 64 products of 1024 x 1023 x 128 1.28 times.
COPY_CALL, PADDED_GAIN = 6000, 1.25

# Multiplications of a product on a CPU from which a call on the weight as the library packs it repays what the call
# costs, about 20 us, where the weight stays; of a convolution of points, and of windows. Measured on a thread of
# an EPYC: products of 1 x 768 x 768 56 -> 68 us, 8 x 768 x 3072 1.34 -> 1.08 ms, 128 x 768 x 2304 5.49 -> 4.70;
# channels-last points of 16 to 64 channels on 56 x 56 84 -> 99 us, 480 to 112 on 14 x 14 as before, 512 to 2048 on
# 7 x 7 1.46 -> 1.13 ms; windows of 3 x 3 of 16 to 64 on 56 x 56 as before, 960 to 160 on 7 x 7 2.1 -> 1.4 ms, 168 to
# 672 on one point 127 -> 64 us.
PACKED_POINTS, PACKED_WINDOWS = 1 << 24, 1 << 20
PACKED_PRODUCT = 1 << 22

# ---- memory. Chosen.
ALIGN = 64  # bytes: a line of the cache, and the widest vector
LARGE = 1 << 16  # bytes of a value that may have memory of its own
MEETINGS = 1 << 16  # pairs of pieces alive at once, above which places are found in linear time
SHARED_STATEMENTS = 64  # of a loop that is compared with others
# Where compiling is slow, so many kernels that differ in sizes from the second number on alone are one: of
# DenseNet-201 30 kernels, and 38 where it takes 6 of them.
SHARED_SIZES, SHARED_SIZE, ANY_NUMBERS = 2, 3, 1 << 10
# The same on a CPU, where at most so many sizes are numbers, since each takes a register: chosen. A loop of a constant
# length up to the first, the terms of a sum that are added in order, or a vector loop up to the second or of whole
# multiples of the third has other code than one of any length. A training step of rexnet has 263 kernels without it and
# 107 with it, one of MobileNetV3 129 and 84.
SHARED_LOOPS, SHARED_EXTENT, SHARED_NUMBERS = 3, 9, 8
IN_ORDER, FEW_VECTORS, WHOLE = 64, 128, 64
