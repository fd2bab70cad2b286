"""Every threshold of the solver, with the measurement behind it.

A threshold decides how a solve is done, not what it returns: on both sides of it the results agree to rounding, or to
the requested tolerance. "Elements" are those of the whole state ``z0``, unless a comment says otherwise; 8-32-8 is a
network with layers of these widths. A script in brackets repeats the measurement.
"""

from __future__ import annotations

# ---- which stepper `auto` takes -------------------------------------------------------------------------------------

#: On the CPU, states of up to this many elements are stepped by Picard's iteration: with explicit and with implicit
#: schemes. A step of a small state consists mostly of Python calls, and one vectorised call replaces many. 64 elements
#: gain a factor of 2 to 10, 256 nothing; an implicit step evaluates func some eight times (benchmarks/small_states.py).
PICARD_NUMBERS = 64, 2048
#: The same on a GPU; explicit steps only if they cannot be captured. A single implicit step waits for the host some ten
#: times: 16 steps of the paper's image block, 294,912 elements, take 27 µs per step at once, 93 µs one by one (H200).
PICARD_NUMBERS_GPU = 1 << 13, 1 << 19
#: On the CPU, if a call of func computes more than this many bytes, many steps at once take longer than single steps:
#: some twenty iterations compute twenty times as much. With explicit and with implicit schemes, of which a single step
#: takes many calls. 200 steps of predictor: 8-32-8 with 4 samples (2 KiB) takes 4.4 instead of 6.3 ms, 2-64-64-2 with 4
#: (8 KiB) 7.6 in both ways, 2-64-2 with 32 (18 KiB) 19 instead of 7, 2-64-64-2 with 32 (66 KiB) 38 instead of 10;
#: trapezoid: 2-64-64-2 with 1024 (2.1 MiB) 499 instead of 1795, on a busy machine
#: (benchmarks/small_states.py). Without gradients, single steps that are repeated without calling func need less:
#: 2-16-2 with 16 samples (2.6 KiB) takes 3.8 ms iterated and 3.7 repeated, with 32 (5 KiB) 8.0 and 3.9.
PICARD_WORK, PICARD_WORK_FORWARD = (8 << 10, 4 << 20), 5 << 9
#: How much a func computes is measured for modules, and for other functions of more than this many elements: with 5
#: elements, 20 steps of a function that is made for the solve take 0.64 ms measured and 0.57 not.
WORK_NUMBERS = 8
#: Solves of this many steps or more are captured as CUDA graphs at once: a capture costs some three passes of a block.
GRAPHS_AT_ONCE = 64
#: Shorter solves are captured when they come for this many times, so that a single call does not pay for a capture.
GRAPHS_REPEATS = 3
#: For each func, the graphs of this many different solves are kept; each holds static buffers of two blocks of rows.
GRAPHS_KEPT = 4

#: The operations of a func are recorded and repeated in the same memory if their results take at most this many bytes:
#: those of a func as it is, and of one inside a transform, whose calls cost more. Trainings of 64-128-64 with 32
#: samples (185 KiB) take 0.62 of the time of single steps, with 128 (545 KiB) 0.94, with 256 (1 MiB) 1.01 and of
#: 32-64-32 with 1024 (1.9 MiB) 1.07: memory that was just freed is faster than memory of its own. 64 networks 8-32-8 by
#: vmap, 200 steps: 7 instead of 27 ms, with gradients 16 instead of 70.
REPEATED_BYTES = 3 << 18, 1 << 22
#: ``auto`` does so in solves of at least this many steps, without gradients and in a training: 24 steps of 32-64-32,
#: batch 64, take 1.65 instead of 1.52 ms, with gradients 4.8 instead of 5.2; 64 steps 3.2 and 3.6, 9.2 and 11.9.
REPEATED_STEPS = 32, 20
#: A backward pass of more operations a step is taken at once from Jacobians, if samples have few numbers. 200 steps of
#: predictor, 2-64-64-2 with 32 samples (13 operations): 17.0 ms recorded, 20.2 at once; abm, 2-64-2 (27) 24.6 and 24.6,
#: 2-64-64-2 (37) 39.4 and 36.0, Riccati's equation (61) 48 and 28.
REPEATED_CALLS = 32
#: What a forward pass of such operations leaves for the backward pass is kept for all steps if that takes at most this
#: many bytes, and made again otherwise: of 64 networks 8-32-8 with gradients 16 instead of 19 ms.
REPEATED_KEPT = 1 << 22
#: What is collected for sums over the steps of a backward pass, and the rows of these steps, take at most this many
#: bytes: blocks of 64 steps are as fast in one piece and in four.
REPEATED_TOGETHER = 1 << 20
#: Products of a row with each of many constant matrices are faster with these by columns if they have at most this many
#: numbers: 64 of 8 × 32 take 5.6 instead of 11.7 µs, 32 × 8 4.1 instead of 9.6, but 64 × 64 18 instead of 13.
TURNED_NUMBERS = 1 << 10

# ---- Picard's iteration ---------------------------------------------------------------------------------------------

#: Its blocks are this many times longer than those of single steps: a longer block needs few more iterations.
PICARD_BLOCKS = 2
#: At most this many elements, in all steps together, are iterated at once: on the CPU, where more take longer than the
#: calls they save, and on a GPU, which needs many to be busy.
PICARD_TOGETHER = 1 << 14, 1 << 23
#: If the changes of an implicit stage grow by less than this factor in two iterations, later steps may converge and are
#: tried again; otherwise all further steps are single.
PICARD_STIFF = 16.0
#: About how many calls of func an implicit step takes.
IMPLICIT_CALLS = 8
#: Steps are iterated together only if they replace at least this many calls of func: without gradients, and in a
#: training, where the backward pass saves more. An iteration takes some twenty calls. 20 steps of 8-32-8 by predictor
#: take 1.4 ms iterated and 1.0 ms single, with gradients 3.7 and 5.1 ms.
PICARD_FEWEST = 40, 15
#: Convergence is not tested before this many iterations: a test costs as much as a small func. With 6, trainings of
#: 8-32-8 take 1 to 3 % less time than with 4, and solves of two elements 0 to 1 % less.
PICARD_BLIND = 6
#: An iteration is given up after half as many calls of func as it replaces, plus this many.
PICARD_EXTRA = 16
#: If a change is still more than this share of the change two iterations before, the iteration has stalled, and what is
#: left may be rounding inside func.
PICARD_STILL = 0.8
#: In the backward pass, changes of at most this many roundings that no longer shrink count as converged.
STANDSTILL = 256
#: Blocks of a backward pass are solved by the Jacobians of samples, one product per element, if a sample has at most
#: the first number of elements, and the sums of a row have at least the second in all: some twenty iterations cost
#: more. 16 samples of 2 elements by abm take 45 instead of 63 ms, a state of 3 by predictor 52 instead of 45.
PICARD_SAMPLE, PICARD_ROW = 4, 8
#: The same if the forward pass took single steps and a call of func computes at most this many bytes. A training of 200
#: steps of predictor with 64 elements: 2-64-2 (18 KiB) takes 16 instead of 27 ms, 2-64-64-2 (66 KiB) 25 instead of 40.
#: Riccati's equation by abm with its gradient: 512 elements take 64 instead of 151 ms, 2048 130 instead of 190.
SAMPLES_WORK = 128 << 10
#: The backward pass of explicit single steps is iterated if a call of func computes at most this many bytes: for one
#: solve, and for several by vmap, whose calls take longer. A training of 200 steps with 64 elements: 8-64-64-8 (18 KiB)
#: takes 20 instead of 33 ms, 2-64-64-2 (66 KiB) 38 instead of 40. If the operations of a step can be repeated, single
#: steps are taken after all: 54 instead of 59 ms.
PICARD_WORK_BACKWARD = 48 << 10, 96 << 10
#: Implicit steps with up to this many elements in all are solved together by Newton's method with a dense matrix; for a
#: tiny state only after Picard's iteration has failed. Forward, 100 steps of bdf2 with 2 elements, for which Picard's
#: iteration converges, take 2.9 ms, by Newton's method 5.1. 200 steps of trapezoid with 3 elements, for which it does
#: not, take 12 ms by Newton's method, stiff 10, and 250 and 265 by Picard's, which falls back to single steps.
NEWTON_NUMBERS = 64
#: If local weights grow by more than this factor in a block, the steps of a mesh are as long as the solution allows,
#: and tiny states go to Newton's method at once: a march and 40 steps over six decades take 15.0 instead of 16.8 ms.
PICARD_UNEVEN = 100.0
#: Newton's method for such a block is given up after this many iterations; the relative error of its Jacobians, which
#: are finite differences, is taken to be at least the second number.
NEWTON_ITERATIONS, NEWTON_ROUGH = 8, 1e-6

# ---- steps in one kernel --------------------------------------------------------------------------------------------

#: ``auto`` takes a kernel for trainings of at least this many steps and states of up to this many elements, with
#: exponentials and rows on the device. Compiling takes seconds; then a training step of 2000 steps is 6 to 20 times
#: faster than by CUDA graphs (H200, 32-64-32 with batches of 64 and 4096; 100,000 systems of two elements too). The
#: price is the memory held for a block.
KERNEL_AUTO_STEPS, KERNEL_AUTO_NUMBERS = 256, 1 << 18
#: Samples per program: if features are scalars, one sample per thread, and if they are tiles, few or many. Tiles of 32
#: samples spill registers and are 10 to 50 times slower (H200, 32-64-32). Few are taken if all programs then have a
#: multiprocessor of their own: a step is 389 instructions forward and 376 backward in each of 4 warps, instead of 734
#: and 444 in each of 8 (``benchmarks/kernel_static.py``); 64 samples are 8.5 ms a training step (H200).
KERNEL_SAMPLES, KERNEL_TILE_SAMPLES = 128, (4, 16)
#: A sample has at most this many elements, so that it fits into one program.
KERNEL_FEATURES = 512
#: Warps per program: of scalars, and of tiles either few or many. With four, two programs share a multiprocessor: 4096
#: samples take 4.8 instead of 6.1 ms forward, and 3.6 instead of 4.6 to be replayed. In the backward pass of tiles of
#: many samples four spill registers and take 1.6 to 2.2 times as long (H200).
KERNEL_WARPS, KERNEL_TILE_WARPS = 4, (4, 8)
#: Four warps are used if the exact lags and exponentials of a program take at most this many bytes of registers.
KERNEL_TILE_HELD = 80 << 10
#: Features per tile; a func becomes a kernel if it has at most this many operations on scalars, or on tiles.
KERNEL_TILE, KERNEL_NUMBERS, KERNEL_TILES = 64, 400, 400
#: At most this many programs recompute what a backward pass needs of its rows.
KERNEL_REPLAYS = 1024
#: Matrices with up to this many entries in all stay on the multiprocessor for all steps; more are read at every step.
KERNEL_HELD = 1 << 13
#: How many steps of a block are read at once. For the gradient of the weights: how many elements of a row a program
#: handles, one per thread, and for how many exponentials, if there would be few programs.
KERNEL_ROWS, KERNEL_PAIRS, KERNEL_PAIRED = 8, 32, 8
#: With the full history, blocks are this many times longer than those of single steps: each is one launch, inside which
#: contributions of earlier steps are read step by step.
KERNEL_LONGER = 2
#: With exponentials, a block has up to this many steps, and elements in its rows and inputs and outputs of matrix
#: products (2 GiB in float32: with half of that, a training step of 4096 samples takes 43 instead of 36 ms).
KERNEL_BLOCK, KERNEL_BLOCK_NUMBERS = 2048, 1 << 29
#: Kernels are compiled for multiples of this many exponentials: each of these takes registers and time (2000 to a
#: million steps need 22 to 34), and each multiple is another kernel.
KERNEL_MODES = 8
#: A kernel holds up to this many exact lags, with the exponentials beyond, in registers; for more it reads a matrix.
HELD_LAGS = 32
#: Exponentials are held in registers for samples of up to this many elements: with 128 and 32 exponentials most spill.
KERNEL_FADING = 64
#: How the elements in a kernel are numbered: feature i of node n is n times the first number plus i; elements of
#: constants are negative, with the second number. No node has so many features, no constant so many elements.
KERNEL_SLOTS = 1 << 20, 1 << 36

# ---- implicit stages ------------------------------------------------------------------------------------------------

#: The Jacobian of a sample of up to this many elements is a dense matrix, if those of all samples have up to this many
#: entries. With 512 the inverse takes 30 ms and a product 0.1 ms, as long as two or three calls of a small func.
DENSE_NUMBERS, DENSE_MEMORY = 512, 1 << 24
#: For states of more elements, bands are tried before dense matrices: those of 64 samples of 200 elements (20 MB) take
#: 5 ms to read, their bands 0.3 ms to eliminate (benchmarks/stiff.py).
DENSE_WIDE = 1024
#: Bands of up to this half width are solved by block elimination; the smallest size of a block.
BAND_WIDEST, BAND_BLOCK = 64, 64
#: Tridiagonal matrices whose inverses would have more entries than this are solved by cyclic reduction: 8 levels of two
#: operations on 200 elements take 60 µs, a product with one inverse 8 µs, with the inverses of 64 samples 2 ms.
BAND_DENSE = 1 << 18
#: A sparse Jacobian may have up to this many colours, one product each: if ``auto`` looks for it, and if a user does.
SPARSE_SOUGHT, SPARSE_COLOURS = 64, 256
#: Products with a sparse Jacobian are computed together up to this many elements.
SPARSE_TOGETHER = 1 << 22
#: Vectors of the Arnoldi bases that show whether a linear part with unknown eigenvalues makes solutions grow.
GROWTH_PRODUCTS = 30
#: A function of a sparse matrix is a sum of up to this many Chebyshev polynomials, each of which is kept for gradients:
#: 180 products with 50,000 elements and their gradients take half as long as some twenty complex LU factorisations
#: (benchmarks/linear_exact.py).
CHEBYSHEV_TERMS = 1024
#: Terms below this share of the largest value are left out of this sum.
CHEBYSHEV_ROUNDING = 1e-13
#: Linear equations without steps: the times of one contour differ by at most this factor; its integral leaves out
#: exp(-digits); rounding grows by at most exp(loss); solutions may grow by at most exp(growth). Beyond that, matrices
#: of up to this size are solved by the Mittag-Leffler function of a matrix.
CONTOUR_WINDOW, CONTOUR_DIGITS, CONTOUR_LOSS, CONTOUR_GROWTH, CONTOUR_MATRIX = 5.0, 34.0, 5.0, 20.0, 64
#: A contour has at most this many nodes, with a linear system each; for eigenvalues left of 0 it needs 14 to 70.
CONTOUR_NODES = 320
#: If a solution from fewer nodes differs by more than this share, A is too far from normal, and the solve is refused.
CONTOUR_OFF = 1e-6
#: Vectors of the Lanczos basis that bounds the numerical range of a sparse matrix if Gershgorin's discs do not, and the
#: number of directions, in a quarter of the plane, in which its region is measured.
LANCZOS_PRODUCTS, REGION_RAYS = 61, 180
#: An Arnoldi basis for all systems of a contour has at most this many vectors, about three times the root of |λ| t^β,
#: and leaves at most this share of the states. Beyond that each system has a sparse LU, which takes five times as long
#: for 10,000 elements.
ARNOLDI_VECTORS, ARNOLDI_ROUNDING = 320, 1e-12
#: Its error is tested after every this many vectors: a test takes as long as some ten products.
ARNOLDI_LOOK = 16
#: The largest of up to this many elements is found by a norm, of more by abs and amax: on a CPU the norm then takes six
#: times as long as these two calls.
NORM_NUMBERS = 1024
#: A new matrix is made if an update is more than this share of the last one.
STAGE_STALE = 0.1
#: Without a structure of the Jacobian, a stage is solved by up to this many fixed-point iterations, one evaluation
#: each. If they contract too slowly for that, GMRES needs about as many products, which cost three evaluations each.
STAGE_PLAIN = 200
#: A step whose local weight is smaller than this share of that of the matrix gets a new matrix: the error of its slope
#: is the error of its state divided by the weight.
STAGE_SHORTER = 1 / 64
#: A Jacobian of up to this many entries is kept, and its matrix is made again for each new step size, in 0.1 ms. With
#: the matrix of the previous step, a mesh of growing steps needs a new Jacobian at every second step, each 0.6 ms, and
#: a solve to a tolerance takes half as long again (benchmarks/adaptive_work.py).
STAGE_KEPT = 1 << 10
#: A change of less than this share of a state may be rounding inside func, which is then estimated: with the ten bits
#: of TF32, if a stage hardly contracts, it is 0.001 and more.
STAGE_NEAR = 1e-2
#: Updates of up to this many times the estimated rounding count as converged.
STAGE_ROUNDING = 256
#: Two solutions of a stage satisfy ``w_0 (f(b) - f(a)) = b - a``. If along an update ``w_0 f`` grows by less than this
#: share of it, there is no other solution on the way.
STAGE_GROWTH = 0.8

# ---- large functions ------------------------------------------------------------------------------------------------

#: In a split backward pass, func is evaluated in one call for as many steps as have this many elements together: 8 of
#: the paper's image block, each of which needs some 16 rows (150 MiB together).
SPLIT_NUMBERS = 5 << 19
#: ``auto`` tries a split backward pass for solves of at least this many steps, after this many backward passes with the
#: same graphs, since tracing func takes seconds. It is kept if a block then takes less than this share of the time,
#: measured on the spot. H200: the image block takes 0.78, 32-64-32 with a batch of 64 takes 0.64.
SPLIT_STEPS, SPLIT_PASSES, SPLIT_SHARE = 64, 3, 0.95

# ---- histories ------------------------------------------------------------------------------------------------------

#: From this many steps on, ``auto`` sums distant blocks by FFT: there the two curves of benchmarks/scaling.py cross.
FFT_STEPS = 8192
#: How many exponentials are assumed in predictions of memory and work, before any weights are known.
EXPONENTIALS_GUESS = 30
#: From this many steps on a mesh, ``auto`` sums the distant past as exponentials: the N² weights would take longer than
#: everything else. Training steps of 1000 elements by abm take 0.23 s (full 0.25) with 512 steps, 1.0 s (full 5.9) with
#: 2048; of 3 elements 0.7 s (full 0.2) with 2048, but full holds 100 MB of weights.
MESH_STEPS = 512
#: For more steps, and beyond this many bytes, checkpoints take no more memory but recompute rows more than once: a
#: million steps of 2048 elements in float32 take 16 MiB and up to five more evaluations, instead of 140 MiB and one.
CHECKPOINT_STEPS, CHECKPOINT_BYTES = 10_000, 16 << 20
#: For rows of more elements, blocks are a quarter as long: matrix products are still efficient, with less memory.
WIDE_ROW = 1 << 16
#: Blocks of up to this many elements are reversed in one copy; larger ones row by row, without a second block.
FLIPPED_NUMBERS = 1 << 18
#: An FFT product works on this many elements at a time (16 MiB in float32); rows on the host are fetched in such parts.
FFT_CHUNK = FETCH_CHUNK = 1 << 22
#: A transfer of rows between device and host or file has at most the first number of bytes. It has the second number of
#: rows, or, if they are small, the third number of bytes: it takes the host as long as steps in a kernel take a GPU.
TRANSFER_BYTES, TRANSFER_ROWS, TRANSFER_LEAST = 8 << 20, 16, 1 << 20
#: Columns per program of the kernel that adds weighted rows (history/kernels.py).
AXPY_COLUMNS = 1024
#: The sizes of coefficients of powers of attention (models/powers.py) add up to this at most: so rounding errors grow.
POWERS_SUM = 100.0
#: Panels of distant rows (history/panels.py) are used from this many on: fewer cost more than they save.
PANELS_FEWEST = 4
#: Panels have the third length if rows have more elements than the first number, or solves more steps than the second.
PANELS_WIDE, PANELS_MANY, PANELS_LONG = 1 << 16, 4096, 256

# ---- solves in plain operations -------------------------------------------------------------------------------------

#: Steps per block of a solve that is composed of PyTorch operations: each slope is added to the rest of its block.
COMPOSED_BLOCK = 16
#: There, an implicit stage has at most this many elements, since its Jacobian is a dense matrix, and inside a transform
#: Newton's method takes at most so many iterations: the stage of -z³ that leads from 1e6 to 98 takes 28.
COMPOSED_NUMBERS, COMPOSED_ITERATIONS = 512, 60

# ---- steps to a tolerance ------------------------------------------------------------------------------------------

#: The next step size is this share of the one that would just meet the tolerance, and between the other two factors of
#: the last one: slopes over cells of very different lengths say little about curvature. So D^½ y = -y has no rejected
#: step.
ADAPTIVE_CAUTION, ADAPTIVE_GROWTH, ADAPTIVE_SHRINK = 0.9, 2.0, 0.1
#: The first step changes the state by this share of the root of the tolerance, and is at most this share of the
#: horizon: an initial slope of 0 says nothing. With 1/64 of the horizon, z = 1/(1+t) on [0, 1000] fails at rtol=1e-2.
ADAPTIVE_FIRST, ADAPTIVE_FIRST_SHARE = 0.1, 1e-3
#: A factor of the estimated error of slopes, which, times the time over which it counts, is kept below the tolerance.
#: With it, D^½ y = -y to T=1000 has an error of 0.99e-5 at rtol=1e-5 (benchmarks/adaptive.py).
ADAPTIVE_WEIGHT = 1.3
#: An error of slopes counts for at most this many times the time in which slopes change by their own size: before a
#: pole only the recent past matters. Without it, D^½ y = y³ takes 7000 steps until it blows up at rtol=1, with it 20.
ADAPTIVE_PASSES = 10.0
#: The largest ``w_0 |J|`` of explicit steps, by the rule of their predictor: on the negative axis ABM(ahead=True) is
#: stable up to 2.0 for all orders, ABM() up to 0.62 (order 1) to 0.81 (order 0.3).
ADAPTIVE_STIFFNESS = {"ahead": 1.7, "left": 0.6}
#: There are at most this many solves. If the error of one is too large, the next one aims at this share of the
#: tolerance. Two suffice for every problem and tolerance of benchmarks/adaptive.py.
ADAPTIVE_ATTEMPTS, ADAPTIVE_AGAIN = 4, 0.4
#: If ``max_steps`` is at least the first number and a tolerance may need more, marches with two larger tolerances, each
#: by the second factor, predict how many: D^½ y = -y to T=1 at rtol=1e-12 is refused in 2 s instead of 29 s.
ADAPTIVE_FORESEEN, ADAPTIVE_COARSER = 10_000, 100.0
#: In the march, the error of the kernel is this share of the tolerance, and so is that of implicit stages.
ADAPTIVE_KERNEL, ADAPTIVE_STAGE = 1e-3, 1e-3
#: Where one rate for all elements says that errors are smaller by this factor, the Jacobian says by how much each is: a
#: relaxation at a rate of 1e4 that drives one at a rate of 1, order 0.8, takes 176 steps to T=3 instead of 4146.
ADAPTIVE_DAMPED = 2.0

#: Below this order starting weights are refused: 1, t^β and t^{2β} are nearly the same. At orders 1e-2, 1e-3, 1e-4 and
#: 1e-6 weights are off by 7e-13, 6e-12, 8e-11, 5e-9, and their derivatives in the order by 7e-11, 6e-9, 8e-7, 5e-3.
STARTING_LEAST = 1e-3

#: The grid point before a jump is this share of the horizon before it: more than rounding, less than any step.
JUMP_LENGTH = 1e-12
#: Grid points less than this share of their step after a jump are left out: states there are no smooth function of its
#: time.
JUMP_CLEARANCE = 0.1

#: If the states of explicit steps grow by more than this factor, the largest eigenvalue of the Jacobian at the start is
#: estimated, and a warning is given if the step is too long for it. D^0.6 z = -20 z in 10 steps grows by 1e7.
UNSTABLE_GROWTH = 1e3

#: Slopes are extrapolated from the change over the last cell, unless that is shorter than this share of the new one.
AHEAD_SHORTEST = 1e-6
#: If w_0 A is at least this large, in rules of order 2 with uneven steps or in float32, the slope of a linear part is a
#: difference of states; otherwise it is a product with A. The error of ten steps with 600 fourth differences in
#: float32, times 1e3, 1e4, 1e5, is 6e-3, 0.5, 23 by products and 8e-6, 2e-3, 4e-3 by differences. For diffusion on 50
#: to 200 points all thresholds from 16 to 64 are alike.
LARGE_STEP = 16.0
#: A warning is given if a solve with a linear part loses more than this share of its digits: w_0 A times one rounding.
LOST_DIGITS = 1e-2
#: The prediction of ABM(ahead=True) moves this share of the way to its correction. With x = -w_0 J this multiplies its
#: error by x (x - 2)/3, at most 1/3 up to x = 2.4, where one full correction more would multiply it by x².
AHEAD_SHARE = 1 / 3

#: An event that ends a solve is first searched for over this share of the steps, then over twice as many, and so on.
EVENT_FIRST_SHARE = 1 / 16
#: The step after the start or a jump, where the solution begins like a power, is halved so often towards its beginning
#: to look for events: the shortest part still has times between that a uniform grid tells from its own points.
EVENT_EARLY = 13
#: The state of a sample may be reset this many times: each takes a solve.
EVENT_ROUNDS = 1000

# ---- what is computed at once, and what is cached -------------------------------------------------------------------

#: Weights of output between grid points are computed in parts of this many, for which ten times as many are held.
OUTPUT_NUMBERS = 1 << 20
#: Weights of the newest cell on a mesh are computed for this many steps at a time; five times as many are held then.
OWN_WEIGHTS = 1 << 16
#: Times are made 0-d tensors this many at once: for all of a million steps they took 450 MB.
INSTANTS = 1024
#: Exponentials for output between grid points of a mesh are summed over this many cells together, on meshes of at least
#: as many: 1000 times on a mesh of 4000 steps add 0.7 s to a solve of 0.6 s; by quadrature over each cell 3.6 s.
DENSE_CELLS = 128
#: Whatever the state, a step takes at least this many bytes at the peak, for times, weights and what is made on the way
#: to them: a solve of one element peaks at 101 (exponentials) and 151 bytes a step for 10^6 steps.
STEP_BYTES = 96
#: A cell takes at least this many at the peak while it is made, for each of its orders: 28 to 32 bytes a step for 10^7
#: steps of predictor, 48 of gl-explicit, 133 of l1-explicit.
CELL_STEP_BYTES = 28
#: Tables of up to this many numbers are cached by their contents; to make larger ones again takes as long as comparing.
TABLE_NUMBERS = 1 << 14
#: With up to this many elements in all states of a solve (8 MiB in float32), a state counting as at least the second
#: number, its history is kept in full without checking the free memory, and the reading of its arguments, of up to 4096
#: steps, is cached.
SMALL_NUMBERS, SMALL_STATE = 1 << 21, 1 << 9
#: From this many orders on, their weights are computed in float64 on the GPU of the state, up to this many weights (1
#: GiB, and several times that meanwhile): for 100,000 orders and 1000 steps this takes seconds on the host.
DEVICE_ORDERS, DEVICE_WEIGHTS = 1 << 12, 1 << 27
#: Tables of up to this many weights of a scheme are cached.
WEIGHTS_NUMBERS = 1 << 13

# ---- what counts as the same, and how much is compared --------------------------------------------------------------

#: How far from a whole number of steps counts as rounding: times may be float32.
WHOLE_SLACK = 1e-6
#: More exponentials than this do not help in float64: the least-squares matrix is numerically singular long before.
MOST_TERMS = 64
#: The fit of up to this many weights is cached by these weights.
FITTED_NUMBERS = 1 << 21
#: Up to this many lags a fit is checked at all of them; beyond that at as many, spaced logarithmically.
CHECKED_LAGS = 100_000
#: A check compares about this many weights at a time, and at least so many lags: each comparison is eight operations
#: (2000 steps and one order: 0.16 instead of 0.45 ms).
CHECKED_NUMBERS, FEWEST_CHECKED = 1 << 13, 1 << 10
#: The weights of panels are computed for this many lags at a time.
PANELS_LAGS = 4096
#: Pinned memory is allocated in pieces of up to this many bytes, which are rounded to powers of two, and then reused.
PINNED_BYTES = 256 << 20
#: To see whether a call of func has changed a container, this many entries at both ends are compared.
COMPARED_ENTRIES = 8
#: Both passes must agree on the value of func at one of so many steps, but at this many steps at most; if func changes
#: something, at the first step and so many others, since its values may agree at late steps alone (spectral norm).
WITNESS_STEPS, WITNESSES, WITNESSES_OF_STATE = 256, 4, 8
#: A function is called this many times before it is captured: the first calls choose algorithms and make workspaces.
WARM_UP = 2
#: ``suggest_step`` compares solutions at this many times besides the start.
COMPARED_TIMES = 16
#: For up to this many steps, a fit computes derivatives of a solution with all weights as matrices: 64 MB for two sums.
TANGENT_STEPS = 2000
#: How long the longest series lasts in the time of a latent state. Two decaying waves, 40 epochs: the loss is 0.53 with
#: 1, 0.13 with 4 and 0.09 with 10, since a network of the usual size changes a state by about 1 per unit of time.
SERIES_LENGTH = 10.0
#: With up to this many elements in all rows of a solve, rows are stored although they could be recomputed from slopes:
#: trainings of 8-32-8 take 4 % less time with 20 steps of trapezoid, 5 % with 200 of abm, and the same with others.
KEPT_NUMBERS = 1 << 18
#: Second derivatives of func, computed in two ways, are the same if those in each tensor differ by at most √ε of the
#: largest, plus this many ε of the largest in all tensors. Networks with up to six layers, convolutions and group norm
#: differ by at most 0.005 √ε, in single and double precision; with layer norm they differ by as much as they are.
COMMUTING_FLOOR = 100
