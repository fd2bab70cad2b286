"""Every threshold of the solver, with the measurement behind it.

A threshold decides how a solve is done, never what it means: on both sides of each the numbers are the same to
rounding. Sizes count numbers of a state (all elements of ``z0``). "Measured" names the script that shows where the two
sides cross.
"""

from __future__ import annotations

# ---- which stepper `auto` takes -------------------------------------------------------------------------------------

#: States up to this many numbers are stepped by Picard's iteration on the CPU, by explicit and by implicit schemes: a
#: step is then mostly calls, and one vectorised call replaces many. Measured: benchmarks/small_states.py, where 64
#: numbers gain 2 to 10 times, 256 nothing; implicit steps evaluate func some eight times anyway.
PICARD_NUMBERS = 64, 2048
#: The same on a GPU, for explicit steps that cannot be captured. A single implicit step waits for the host some ten
#: times; 16 steps of the paper's image block, 294,912 numbers each, take 27 µs a step at once, 93 µs one by one (H200).
PICARD_NUMBERS_GPU = 1 << 13, 1 << 19
#: A func with more parameters than this costs more than its calls (a layer of 180 × 180 takes about 10 µs).
PICARD_PARAMETERS = 1 << 15
#: CUDA graphs are captured at once from this many steps on: a capture costs about three eager passes over a block.
GRAPHS_AT_ONCE = 64
#: Shorter solves are captured when they come for this many times, so that a single call does not pay for a capture.
GRAPHS_REPEATS = 3
#: Shapes of a func whose graphs are kept; each holds its static buffers (a block of rows, twice).
GRAPHS_KEPT = 4

#: Bytes of all results of a func up to which its operations are repeated in the same memory, which holds them all, and
#: steps from which on: to write them down takes as long as some ten steps. 200 steps of 64 networks 8-32-8 by vmap take
#: 15 ms in place of 27, with gradients 54 for 70; 500 doubled ones of a batch of 64, 32-64-32, 76 for 100.
REPEATED_BYTES, REPEATED_STEPS = 1 << 22, 24

# ---- Picard's iteration ---------------------------------------------------------------------------------------------

#: Blocks are this many times longer than those of single steps: a longer block costs few more iterations.
PICARD_BLOCKS = 2
#: Numbers in all steps that are iterated together; more of them take longer than the calls that they save.
PICARD_TOGETHER = 1 << 14
#: The same on a GPU, which only many of them fill.
PICARD_TOGETHER_GPU = 1 << 23
#: A stage whose changes grow by less than this factor in two iterations may soon contract: later steps are tried again.
PICARD_STIFF = 16.0
#: Calls of func in an implicit step, about.
IMPLICIT_CALLS = 8
#: Calls that a set of steps must save for an iteration of some twenty to pay, and in a training, whose backward pass
#: saves more: 20 steps of a network 8-32-8 by predictor take 1.4 ms for 1.0, with gradients 3.7 for 5.1.
PICARD_FEWEST = 40, 15
#: Iterations before one looks whether they have settled: looking costs as much as a small func. With 6, trainings of
#: 8-32-8 take 1 to 3 % less time than with 4, and solves of two numbers as long or 1 % less.
PICARD_BLIND = 6
#: Iterations that may be made beside half of the calls that they replace.
PICARD_EXTRA = 16
#: Two iterations that leave more than this share of a change stand still.
PICARD_STILL = 0.8
#: A backward iteration that changes nothing by more than this many roundings, and no less than before, stands still.
STANDSTILL = 256
#: Numbers of a sample up to which its Jacobians, one product each, are cheaper than some twenty iterations backward,
#: and numbers in the sums of a row from which on: 16 × 2 by abm take 45 ms in place of 63, 3 by predictor 52 for 45.
PICARD_SAMPLE, PICARD_ROW = 4, 8
#: The same beside single steps: numbers of the state, and these times the parameters of func, up to which Jacobians
#: take less time than the calls that they save. Solve and gradient of Riccati's equation by abm: 512 numbers in 64 ms,
#: not 151, 2048 130 for 190, 4096 as long; networks 2-16-2 and 2-64-2 of 256 samples 33 for 50 and 89 for 76.
SAMPLES_NUMBERS, SAMPLES_WORK = 1 << 11, 1 << 16
#: Bytes of a state up to which the backward pass of explicit steps is iterated though their forward pass is not: of one
#: solve, and of several by vmap, whose calls take longer. Networks 8-32-8 with 200 steps, 16 samples 18 in place of 37
#: ms (double precision 27 for 38), 64 samples 34 for 42 (59 for 47); 64 of them by vmap 61 for 121 (105 for 135).
#: These are taken one by one after all where the operations of a step can be repeated, which takes 54 ms for 59.
PICARD_BACKWARD = 1 << 10, 1 << 11
#: Numbers in all steps up to which implicit steps are found by Newton's method with a dense matrix. Those of a tiny
#: state are taken so many at once where Picard's iteration does not settle soon. Forward, 100 steps of bdf2 with 2
#: numbers that do: 2.9 ms, by Newton's method 5.1; 200 of trapezoid with 3 that do not: 12 and, stiff, 10; by Picard's
#: iteration, which would give way to single steps, 250 and 265.
NEWTON_NUMBERS = 64
#: Where own weights on a mesh grow by this factor, steps are as long as what they have to follow lets them be, and
#: Picard's iteration is not tried on tiny states: a march and 40 steps over six decades take 15.0 in place of 16.8 ms.
PICARD_UNEVEN = 100.0
#: Its iterations, and how exact its differences are, at best.
NEWTON_ITERATIONS, NEWTON_ROUGH = 8, 1e-6

# ---- steps in one kernel --------------------------------------------------------------------------------------------

#: Steps from which, and numbers of the state up to which, ``auto`` takes a kernel for a training with exponentials and
#: rows on the device: compiling takes seconds, then a training step of 2000 is 5 to 11 times faster than by CUDA graphs
#: (H200, networks 32-64-32 with batches of 64 and 4096; 100,000 systems of two numbers too), at the price of what is
#: kept for a block.
KERNEL_AUTO_STEPS, KERNEL_AUTO_NUMBERS = 256, 1 << 18
#: Samples of a program where features are single numbers, one a thread, and where they are tiles: of 32 samples tiles
#: spill registers and are 10 to 50 times slower (H200, networks 32-64-32).
KERNEL_SAMPLES, KERNEL_TILE_SAMPLES = 128, 16
#: Numbers of a sample up to which it fits into one program.
KERNEL_FEATURES = 512
#: Warps of a program of single numbers, and of one of tiles, few or many. With four, two programs share a
#: multiprocessor: 4096 samples take 4.8 ms forward, not 6.1, and 3.6 to be replayed, not 4.6; 64 take the same, and 256
#: of a narrow state more. With four the backward pass spills registers and takes 1.6 to 2.2 of the time (H200).
KERNEL_WARPS, KERNEL_TILE_WARPS = 4, (4, 8)
#: Bytes of exact lags and exponentials of a program up to which four warps hold them in registers.
KERNEL_TILE_HELD = 80 << 10
#: Features in a tile, and operations on single numbers and on tiles up to which a function becomes a kernel.
KERNEL_TILE, KERNEL_NUMBERS, KERNEL_TILES = 64, 400, 400
#: Programs that compute what a backward pass takes of its rows.
KERNEL_REPLAYS = 1024
#: Numbers of all matrices up to which they are held for all steps; more are read again at every step.
KERNEL_HELD = 1 << 13
#: Steps of a block whose rows are read at once; numbers of a row whose products with others a program adds up, one a
#: thread, and for how many exponentials where programs would be few.
KERNEL_ROWS, KERNEL_PAIRS, KERNEL_PAIRED = 8, 32, 8
#: Blocks of the full history are so many times longer: each is a launch, and inside it sums are read step by step.
KERNEL_LONGER = 2
#: With exponentials a block has up to this many steps, and numbers in its rows and in what matrices take and give
#: (2 GiB in float32: with half of that a training step of 4096 samples takes 43 ms instead of 36).
KERNEL_BLOCK, KERNEL_BLOCK_NUMBERS = 2048, 1 << 29
#: A kernel has room for a multiple of so many exponentials: each is held and computed (22 to 34 for 2000 to a million
#: steps), and each multiple is compiled.
KERNEL_MODES = 8
#: Exact lags up to which a kernel holds them and the exponentials beyond them in registers.
HELD_LAGS = 32
#: Numbers of a sample up to which exponentials stay in registers: with 128 and 32 exponentials most of them spill.
KERNEL_FADING = 64
#: Slots of a kernel's elements: a node times the first and a feature of it, or, below zero, a constant times the second
#: and an element of it. No node has as many features, no constant as many elements.
KERNEL_SLOTS = 1 << 20, 1 << 36

# ---- implicit stages ------------------------------------------------------------------------------------------------

#: Numbers of a sample up to which its Jacobian is a matrix, and numbers in all these matrices. With 512 the inverse
#: takes 30 ms and a product 0.1 ms, as long as two or three calls of a small func.
DENSE_NUMBERS, DENSE_MEMORY = 512, 1 << 24
#: Numbers of a state beyond which bands are looked for before matrices: those of 64 samples of 200 numbers, 20 MB, take
#: 5 ms to read, their bands 0.3 ms to eliminate (benchmarks/stiff.py).
DENSE_WIDE = 1024
#: The half width of a band up to which it is eliminated by blocks, and the least size of a block.
BAND_WIDEST, BAND_BLOCK = 64, 64
#: Numbers in the inverses of tridiagonal matrices beyond which they are solved by cyclic reduction: 8 levels of two
#: operations on 200 numbers take 60 µs, a product with one inverse 8 µs, with those of 64 samples 2 ms.
BAND_DENSE = 1 << 18
#: Colours of a sparse Jacobian, a product each, up to which it is looked for: by itself, where a user asks for it.
SPARSE_SOUGHT, SPARSE_COLOURS = 64, 256
#: Numbers in products with a sparse Jacobian that are asked for together.
SPARSE_TOGETHER = 1 << 22
#: Vectors of the bases in which a linear part that may grow is looked at, where its eigenvalues are not known.
GROWTH_PRODUCTS = 30
#: Chebyshev polynomials up to which a function of a sparse matrix is summed in them: 180 products with 50,000 numbers
#: and their gradients take half as long as some twenty complex LU (benchmarks/linear_exact.py), and each is kept.
CHEBYSHEV_TERMS = 1024
#: Terms below this share of the largest value are left out of such a sum.
CHEBYSHEV_ROUNDING = 1e-13
#: Without steps: times of one contour lie within this factor, what is below exp(-digits) is left out of its integral,
#: rounding grows by at most exp(loss), and by exp(growth) where A does. Beyond that, matrices up to this size have a
#: function of their own.
CONTOUR_WINDOW, CONTOUR_DIGITS, CONTOUR_LOSS, CONTOUR_GROWTH, CONTOUR_MATRIX = 5.0, 34.0, 5.0, 20.0, 64
#: Nodes of a contour, a system each; of eigenvalues left of 0 it takes 14 to 70.
CONTOUR_NODES = 320
#: A solution from fewer nodes may be off by this share, otherwise there is none: A is too far from normal.
CONTOUR_OFF = 1e-6
#: Vectors of the basis in which the numerical range of a sparse matrix is looked at, where its discs do not say, and
#: directions in a quarter of the plane in which its region is measured.
LANCZOS_PRODUCTS, REGION_RAYS = 61, 180
#: Vectors of a basis for all of these systems with a sparse matrix, some three times the root of |λ| t^β, and the share
#: of the states that they may miss. Beyond them each system has a sparse LU, five times as long for 10,000 numbers.
ARNOLDI_VECTORS, ARNOLDI_ROUNDING = 320, 1e-12
#: Vectors between two looks at what they miss: a look takes as long as some ten products.
ARNOLDI_LOOK = 16
#: Numbers beyond which a norm of their sizes takes longer than two calls: on a CPU six times as long.
NORM_NUMBERS = 1024
#: Updates that shrink by less than this factor ask for a new matrix.
STAGE_STALE = 0.1
#: Plain iterations of a stage, one evaluation each, in place of systems without a structure, where each product costs
#: three: if they contract too slowly to end within so many, GMRES would take as many products.
STAGE_PLAIN = 200
#: A step with so much smaller a weight asks for a matrix of its own: the error of its slope is its state's over it.
STAGE_SHORTER = 1 / 64
#: A Jacobian of up to so many numbers is kept, and its matrix made anew for each step of another length: 0.1 ms. With
#: the matrix of the step before, a mesh of growing steps asks for a Jacobian at every second step, each 0.6 ms: a solve
#: to a tolerance takes half as long again (benchmarks/adaptive_work.py).
STAGE_KEPT = 1 << 10
#: A change of at most this share of a state may be rounding inside func, which is then looked at: in ten bits, where
#: a stage hardly contracts, 0.001 and more.
STAGE_NEAR = 1e-2
#: Updates of this many roundings do not shrink any further.
STAGE_ROUNDING = 256
#: Of two solutions of a stage, ``w_0 (f(b) - f(a)) = b - a``: a move with less than this share of it met only one.
STAGE_GROWTH = 0.8

# ---- large functions ------------------------------------------------------------------------------------------------

#: Numbers in the states of steps whose func is evaluated in one call of a split backward pass: 8 of the paper's image
#: block, each of which takes some 16 rows (150 MiB together).
SPLIT_NUMBERS = 5 << 19
#: Steps of a solve, and backward passes with the same graphs, from which on ``auto`` tries a split one: reading func
#: takes seconds. It is kept where it takes less than this share of the time, measured there and then. H200: the image
#: block takes 0.78, a network 32-64-32 with a batch of 64 0.64.
SPLIT_STEPS, SPLIT_PASSES, SPLIT_SHARE = 64, 3, 0.95

# ---- histories ------------------------------------------------------------------------------------------------------

#: From this many steps on, `auto` sums distant blocks by FFT (benchmarks/scaling.py: where the two curves cross).
FFT_STEPS = 8192
#: A guess of the number of exponentials, for predictions before any weights are known.
EXPONENTIALS_GUESS = 30
#: From this many steps on a mesh, `auto` sums the far past as exponentials: the N² weights of each pair of steps take
#: longer than all else. Training steps of 1000 numbers by abm: 0.25 against 0.23 s with 512 steps, 5.9 against 1.0 s
#: with 2048; of 3 numbers 0.2 against 0.7 s with 2048, but 100 MB of weights.
MESH_STEPS = 512
#: Steps, and bytes, beyond which checkpoints take no more memory but compute rows more than once more: a million steps
#: of 2048 numbers in single precision take 16 MiB and up to five more evaluations, in place of 140 MiB and one.
CHECKPOINT_STEPS, CHECKPOINT_BYTES = 10_000, 16 << 20
#: Rows of more numbers make a good matrix product with a quarter of the block, and a quarter of the memory.
WIDE_ROW = 1 << 16
#: Blocks of up to this many numbers are turned around in one copy; larger ones row by row, without a second block.
FLIPPED_NUMBERS = 1 << 18
#: Numbers alive at once in an FFT product (16 MiB in single precision), and fetched at once from rows on the host.
FFT_CHUNK = FETCH_CHUNK = 1 << 22
#: The most bytes of rows that travel between device and host or file in one transfer, and its rows; of small ones as
#: many as have the bytes named last: a transfer takes the host as long as the steps of a kernel take a GPU.
TRANSFER_BYTES, TRANSFER_ROWS, TRANSFER_LEAST = 8 << 20, 16, 1 << 20
#: Columns in a program of the kernel that adds weighted rows.
AXPY_COLUMNS = 1024
#: What coefficients of powers of attention (models/powers.py) may add up to: about how far rounding errors grow.
POWERS_SUM = 100.0
#: Panels of distant rows (history/panels.py): from this many on they save more than they cost.
PANELS_FEWEST = 4
#: Rows of this many numbers, or solves of this many steps, take panels of this length.
PANELS_WIDE, PANELS_MANY, PANELS_LONG = 1 << 16, 4096, 256

# ---- solves in plain operations -------------------------------------------------------------------------------------

#: Steps in a block of a solve that is composed of plain operations: each slope is added to the rest of its block.
COMPOSED_BLOCK = 16
#: Numbers of an implicit stage there, whose Jacobian is a dense matrix.
COMPOSED_NUMBERS = 512

# ---- steps to a tolerance ------------------------------------------------------------------------------------------

#: Caution in the next length, and how much longer or shorter it may be: slopes over cells of very different lengths say
#: little about their bend. With these D^½ y = -y takes no rejected step.
ADAPTIVE_CAUTION, ADAPTIVE_GROWTH, ADAPTIVE_SHRINK = 0.9, 2.0, 0.1
#: The first step changes the state by this share of the root of the tolerance, and is at most this share of the
#: horizon: a slope that begins with 0 says nothing. With 1/64 of it z = 1/(1+t) is missed on [0, 1000] at rtol=1e-2.
ADAPTIVE_FIRST, ADAPTIVE_FIRST_SHARE = 0.1, 1e-3
#: The estimated error of the slopes, times this and the time over which it counts, is held below the tolerance. With it
#: D^½ y = -y to T=1000 errs by 0.99e-5 at rtol=1e-5 (benchmarks/adaptive.py).
ADAPTIVE_WEIGHT = 1.3
#: An error of the slopes counts no longer than this many times it takes them to change by their size: before a pole all
#: that matters is recent. Without it D^½ y = y³ takes 7000 steps to where it blows up at rtol=1, with it 20.
ADAPTIVE_PASSES = 10.0
#: ``w_0 |J|`` of explicit steps, by the rule of their predictor: ABM(ahead=True) is stable up to 2.0 on the negative
#: axis for each order, ABM() up to 0.62 (order 1) to 0.81 (0.3).
ADAPTIVE_STIFFNESS = {"ahead": 1.7, "left": 0.6}
#: A solve whose error comes out larger than was asked is made again for this share of it, so often in all. Twice does
#: for every problem and tolerance of benchmarks/adaptive.py.
ADAPTIVE_ATTEMPTS, ADAPTIVE_AGAIN = 4, 0.4
#: Where a tolerance may take more steps than allowed, and so many are allowed, two larger ones foresee how many: each
#: time by this factor. D^½ y = -y to T=1 at rtol=1e-12 is refused in 2 s in place of 29 s.
ADAPTIVE_FORESEEN, ADAPTIVE_COARSER = 10_000, 100.0
#: The kernel is taken to this share of the tolerance, and so are implicit stages of the march.
ADAPTIVE_KERNEL, ADAPTIVE_STAGE = 1e-3, 1e-3

#: The point before a jump lies this share of the horizon before it: further apart than rounding, nearer than any step.
JUMP_LENGTH = 1e-12
#: A point less than this share of its step after a jump is left out: how it moves with the jump's time is not smooth.
JUMP_CLEARANCE = 0.1

#: A slope is predicted from the change over the cell before unless that is shorter than this share of the new one.
AHEAD_SHORTEST = 1e-6
#: From this size of w_0 A on, slopes of a linear part in a rule of order 2 are differences of states, where steps are
#: uneven or in single precision; below it they are products with A. Error of ten steps of 600 fourth differences in
#: float32, times 1e3, 1e4, 1e5, by products: 6e-3, 0.5, 23; by differences 8e-6, 2e-3, 4e-3. Diffusion of 50 to 200
#: numbers is alike from 16 to 64.
LARGE_STEP = 16.0
#: Share of its digits, as w_0 A times one rounding, that a solve with a linear part may lose before it says so.
LOST_DIGITS = 1e-2
#: How far the predicted state of ABM(ahead=True) goes towards the corrected one. An error of it is then multiplied by
#: x (x - 2)/3, x = -w_0 J, at most 1/3 up to x = 2.4, where one full correction more would make it x².
AHEAD_SHARE = 1 / 3

#: The share of the steps over which an event that ends a solve is looked for first; then over twice as many.
EVENT_FIRST_SHARE = 1 / 16
#: How often the state of a sample may be reset: each time takes a solve.
EVENT_ROUNDS = 1000

# ---- what is found again --------------------------------------------------------------------------------------------

#: Weights of output between grid points that are computed at once: some ten times as many numbers are alive by then.
OUTPUT_NUMBERS = 1 << 20
#: Steps whose own weights on a mesh are computed at once: some five times as many numbers are alive by then.
OWN_WEIGHTS = 1 << 16
#: Times that are made single tensors at once: for all of a million steps they took 450 MB.
INSTANTS = 1024
#: Cells of a mesh whose exponentials are taken together for output between points: 1000 times on a mesh of 4000 steps
#: add 0.7 s to a solve of 0.6 s; by quadrature for each cell 3.6 s.
DENSE_CELLS = 128
#: Small tables are compared by their contents; larger ones are made anew, which takes no longer than comparing.
TABLE_NUMBERS = 1 << 14
#: Numbers in all states of a solve, those of a state counted as so many at least, up to which its past is held without
#: asking how much memory is free (8 MiB in single precision) and its reading, of up to 4096 steps, is found again.
SMALL_NUMBERS, SMALL_STATE = 1 << 21, 1 << 9
#: From this many orders on their weights are computed on the GPU of the state, in float64, up to so many numbers
#: (1 GiB, and several times that on the way): for 100,000 orders and 1000 steps that takes seconds on the host.
DEVICE_ORDERS, DEVICE_WEIGHTS = 1 << 12, 1 << 27
#: Weights of a scheme up to this many numbers are found again.
WEIGHTS_NUMBERS = 1 << 13

# ---- what counts as the same, and how much is looked at -------------------------------------------------------------

#: How far from a whole number of steps still counts as rounding: times may arrive in float32.
WHOLE_SLACK = 1e-6
#: More exponentials than this do not help in float64: the least-squares matrix is numerically singular long before.
MOST_TERMS = 64
#: Weights up to this many numbers have a fit that is found again by them.
FITTED_NUMBERS = 1 << 21
#: All lags of a fit are checked up to this many; beyond it as many, spaced by their logarithm.
CHECKED_LAGS = 100_000
#: Weights of a fit that are compared at once, and lags at least: each comparison is eight operations (2000 steps and
#: one order: 0.16 ms in place of 0.45).
CHECKED_NUMBERS, FEWEST_CHECKED = 1 << 13, 1 << 10
#: Lags whose panels are tabulated at once.
PANELS_LAGS = 4096
#: Bytes of pinned memory that are asked for at once: it is handed out in powers of two, and reused from pass to pass.
PINNED_BYTES = 256 << 20
#: Entries at both ends of a container that are compared to see whether a call of func has changed it.
COMPARED_ENTRIES = 8
#: Steps at which both passes must agree on the value of func: one for so many steps, and how many at most.
WITNESS_STEPS, WITNESSES = 256, 4
#: Calls of a function before it is captured: the first ones choose algorithms and make workspaces.
WARM_UP = 2
#: Times besides the start at which ``suggest_step`` compares solutions.
COMPARED_TIMES = 16
#: A fit takes derivatives of a solution of up to so many steps with all weights as matrices: 64 MB for two sums.
TANGENT_STEPS = 2000
#: How long the longest series lasts in the time of a latent state. Two decaying waves, 40 epochs: with 1 the loss is
#: 0.53, with 4 it is 0.13, with 10 0.09, since a network of the usual size turns a state by about 1 in a unit of time.
SERIES_LENGTH = 10.0
#: Numbers in all rows of a solve up to which they are written down, though they can be computed again from its slopes:
#: trainings of 8-32-8 take 4 % less time with 20 steps of trapezoid and 5 % with 200 of abm, with others the same.
KEPT_NUMBERS = 1 << 16
