/* A CUDA program for containers: it says which GPUs it sees, takes memory, keeps it, and works on it.
 *
 *   cuda_probe [MIB [SECONDS [SPIN]]]
 *
 * It opens the driver's library as every CUDA program does, so that it needs no toolkit. One line of JSON, then it stays
 * for SECONDS; with SPIN it fills the memory again and again meanwhile. Exit status 1: the error is in the line.
 */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MULTIPROCESSORS = 16 }; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */

typedef struct {
  unsigned char bytes[16];
} Uuid;

static void *library;

static int fail(const char *call, int code) {
  int (*name)(int, const char **) = (int (*)(int, const char **))dlsym(library, "cuGetErrorName");
  const char *told = "no name";
  if (name != NULL) name(code, &told);
  printf("{\"call\": \"%s\", \"error\": \"%s\"}\n", call, told);
  fflush(stdout);
  return 1;
}

#define FUNCTION(symbol, ...) int (*symbol)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(library, #symbol)
#define TRY(call, ...)                              \
  do {                                              \
    int code = call(__VA_ARGS__);                   \
    if (code != 0) return fail(#call, code);        \
  } while (0)

int main(int count_of_arguments, char **arguments) {
  size_t mib = count_of_arguments > 1 ? strtoul(arguments[1], NULL, 10) : 0;
  long seconds = count_of_arguments > 2 ? strtol(arguments[2], NULL, 10) : 0;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    printf("{\"call\": \"dlopen\", \"error\": \"%s\"}\n", dlerror());
    return 1;
  }
  FUNCTION(cuInit, unsigned);
  FUNCTION(cuDeviceGetCount, int *);
  FUNCTION(cuDeviceGetUuid_v2, Uuid *, int);
  FUNCTION(cuDeviceGetAttribute, int *, int, int);
  FUNCTION(cuDevicePrimaryCtxRetain, void **, int);
  FUNCTION(cuCtxSetCurrent, void *);
  FUNCTION(cuMemGetInfo_v2, size_t *, size_t *);
  FUNCTION(cuMemAlloc_v2, unsigned long long *, size_t);
  FUNCTION(cuMemsetD8_v2, unsigned long long, unsigned char, size_t);
  FUNCTION(cuMemcpyDtoH_v2, void *, unsigned long long, size_t);
  FUNCTION(cuCtxSynchronize, void);

  int devices = 0;
  unsigned long long memory = 0;
  TRY(cuInit, 0);
  TRY(cuDeviceGetCount, &devices);
  printf("{\"devices\": [");
  for (int device = 0; device < devices; device++) {
    Uuid uuid;
    void *context;
    int multiprocessors;
    size_t free_bytes, total_bytes;
    TRY(cuDeviceGetUuid_v2, &uuid, device);
    TRY(cuDevicePrimaryCtxRetain, &context, device);
    TRY(cuCtxSetCurrent, context);
    TRY(cuDeviceGetAttribute, &multiprocessors, MULTIPROCESSORS, device);
    TRY(cuMemGetInfo_v2, &free_bytes, &total_bytes);
    printf("%s{\"uuid\": \"", device > 0 ? ", " : "");
    for (int byte = 0; byte < 16; byte++)
      printf("%s%02x", byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "", uuid.bytes[byte]);
    printf("\", \"multiprocessors\": %d, \"free_mib\": %zu, \"total_mib\": %zu}", multiprocessors, free_bytes >> 20,
           total_bytes >> 20);
  }
  if (mib > 0) {
    unsigned char last = 0;
    int code = cuMemAlloc_v2(&memory, mib << 20);
    if (code != 0) {
      printf("], ");
      FUNCTION(cuGetErrorName, int, const char **);
      const char *told = "no name";
      cuGetErrorName(code, &told);
      printf("\"call\": \"cuMemAlloc\", \"error\": \"%s\"}\n", told);
      return 1;
    }
    TRY(cuMemsetD8_v2, memory, 165, mib << 20);
    TRY(cuMemcpyDtoH_v2, &last, memory + (mib << 20) - 1, 1);
    printf("], \"allocated_mib\": %zu, \"last_byte\": %d}\n", mib, last);
  } else {
    printf("]}\n");
  }
  fflush(stdout);
  time_t end = time(NULL) + seconds;
  while (time(NULL) < end) {
    if (count_of_arguments > 3 && memory != 0) {
      TRY(cuMemsetD8_v2, memory, 90, mib << 20);
      TRY(cuCtxSynchronize);
    } else {
      usleep(50000);
    }
  }
  return 0;
}
