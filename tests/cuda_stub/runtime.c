/* A CUDA runtime with one device (or CUDA_STUB_DEVICES), whose memory is the host's and whose kernels do nothing.
 *
 * Linked before the real one (LD_PRELOAD), it answers PyTorch's own CUDA code: dispatch, allocator, streams, generators and
 * checks run, no number is computed. What a user of a GPU pays for is counted. Functions that have nothing to say but
 * "success" are generated from the headers as weak symbols; see build.py.
 */
#include <cuda_runtime_api.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHES, WAITS, COPIES };
long stub_counts[3];
size_t stub_memory = (size_t)80 << 30;
static size_t used;

static void count(int kind) { __atomic_fetch_add(&stub_counts[kind], 1, __ATOMIC_RELAXED); }

/* ---- the device ---- */
static __thread int current;

cudaError_t cudaGetDeviceCount(int *number) {
    const char *given = getenv("CUDA_STUB_DEVICES");
    *number = given ? atoi(given) : 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { current = device; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *device, int index) {
    memset(device, 0, sizeof *device);
    strcpy(device->name, "a device without kernels");
    device->major = 9;
    device->totalGlobalMem = stub_memory;
    device->multiProcessorCount = 132;
    device->warpSize = 32;
    device->maxThreadsPerBlock = 1024;
    device->maxThreadsPerMultiProcessor = 2048;
    device->maxBlocksPerMultiProcessor = 32;
    device->regsPerBlock = device->regsPerMultiprocessor = 1 << 16;
    device->sharedMemPerBlock = 48 << 10;
    device->sharedMemPerBlockOptin = 227 << 10;
    device->sharedMemPerMultiprocessor = 228 << 10;
    device->maxThreadsDim[0] = device->maxThreadsDim[1] = 1024;
    device->maxThreadsDim[2] = 64;
    device->maxGridSize[0] = 0x7fffffff;
    device->maxGridSize[1] = device->maxGridSize[2] = 65535;
    device->textureAlignment = 512;
    device->unifiedAddressing = device->concurrentKernels = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int index) {
    struct cudaDeviceProp device;
    cudaGetDeviceProperties(&device, index);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = device.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = device.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = device.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = device.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = device.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)device.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)device.sharedMemPerBlockOptin; break;
    case cudaDevAttrWarpSize: *value = device.warpSize; break;
    case cudaDevAttrMaxGridDimX: *value = device.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = device.maxGridSize[1]; break;
    case cudaDevAttrMaxBlockDimX: *value = device.maxThreadsDim[0]; break;
    default: *value = 1;
    }
    return cudaSuccess;
}

/* ---- its memory ---- */
static cudaError_t take(void **address, size_t bytes) {
    return posix_memalign(address, 512, bytes ? bytes : 512) ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
    *address = NULL;
    if (used + bytes > stub_memory || take(address, bytes) != cudaSuccess) return cudaErrorMemoryAllocation;
    __atomic_fetch_add(&used, malloc_usable_size(*address), __ATOMIC_RELAXED);
    return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
    if (address) __atomic_fetch_sub(&used, malloc_usable_size(address), __ATOMIC_RELAXED);
    free(address);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    *total = stub_memory;
    *left = used < stub_memory ? stub_memory - used : 0;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) { return take(address, bytes); }
cudaError_t cudaFreeHost(void *address) { free(address); return cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    count(kind == cudaMemcpyDeviceToDevice ? LAUNCHES : COPIES);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    count(WAITS);
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) { count(LAUNCHES); return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) { static char room[1 << 20]; *address = room; return cudaSuccess; }

/* ---- streams and events: handles that nothing is kept of ---- */
static cudaError_t handle(void *to) { return (*(void **)to = malloc(64)) ? cudaSuccess : cudaErrorMemoryAllocation; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { return handle(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return handle(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return handle(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return handle(event); }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) { *milliseconds = 1; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { count(WAITS); return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { count(WAITS); return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { count(WAITS); return cudaSuccess; }

/* ---- kernels ---- */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->ptxVersion = found->binaryVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared) { *blocks = 2; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads, size_t shared, unsigned flags) { *blocks = 2; return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { count(LAUNCHES); return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) { count(LAUNCHES); return cudaSuccess; }

/* What compiled kernel calls (<<<...>>>) become. */
cudaError_t __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { count(LAUNCHES); return cudaSuccess; }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    grid->x = grid->y = grid->z = block->x = block->y = block->z = 1;
    *shared = 0;
    *(void **)stream = NULL;
    return cudaSuccess;
}
char __cudaInitModule(void **module) { return 1; }

/* ---- the driver ---- */
static int driver_success(void) { return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) { *flags = 0; *is_active = 1; return 0; }
int cuCtxGetCurrent(void **context) { static char one; *context = &one; return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    *function = strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)driver_success : (void *)cuDevicePrimaryCtxGetState;
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* ---- cuBLAS ---- */
int cublasCreate_v2(void **library) { return handle(library); }
int cublasDestroy_v2(void *library) { free(library); return 0; }
int cublasGetMathMode(void *library, int *mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *library, int *mode) { *mode = 0; return 0; }
int cublasLtCreate(void **library) { return handle(library); }
size_t cublasLtGetVersion(void) { return 130000; }
static int descriptor(void **made) { return (*made = calloc(1, 512)) == NULL; }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) { return descriptor(made); }
int cublasLtMatmulPreferenceCreate(void **made) { return descriptor(made); }
int cublasLtMatrixLayoutCreate(void **made, int type, unsigned long rows, unsigned long columns, long stride) { return descriptor(made); }
int cublasLtMatmulDescDestroy(void *made) { free(made); return 0; }
int cublasLtMatmulPreferenceDestroy(void *made) { free(made); return 0; }
int cublasLtMatrixLayoutDestroy(void *made) { free(made); return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *library, void *operation, void *a, void *b, void *c, void *d, void *preference, int wanted, void *found, int *number) {
    memset(found, 0, 96);
    *number = 1;
    return 0;
}
