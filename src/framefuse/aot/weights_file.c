/* Where the weights of a model lie: in the library, or in a file beside it, which is mapped rather than read. */

#ifdef WEIGHTS_FILE
#include "checksum.c"

enum { DIGITS = 8 }; /* of the checksum in a file's head */

/* The path of the file in the folder of the library; NULL where the library's own is not known. The caller frees it. */
static char *beside_library(void) {
    Dl_info about;
    char *path = NULL, *library = dladdr(description, &about) ? realpath(about.dli_fname, NULL) : NULL;
    const char *slash = library ? strrchr(library, '/') : NULL;
    size_t folder = slash ? (size_t)(slash + 1 - library) : 0;
    if (slash != NULL && (path = malloc(folder + sizeof WEIGHTS_FILE)) != NULL) {
        memcpy(path, library, folder);
        memcpy(path + folder, WEIGHTS_FILE, sizeof WEIGHTS_FILE);
    }
    free(library);
    return path;
}

/* Whether a file has weights of these names and sizes. */
static int is_alike(const char *data) {
    const int behind = CHECKSUM_AT + DIGITS;
    return memcmp(data, framefuse_weights, CHECKSUM_AT) == 0 &&
           memcmp(data + behind, framefuse_weights + behind, WEIGHTS_HEAD - behind) == 0;
}

/* Whether its weights are those that its head has the checksum of, and where it is to be the file that was written with
 * the library, that one. */
static int is_whole(const char *data, int is_own) {
    char digits[DIGITS + 1];
    if (is_own && memcmp(data + CHECKSUM_AT, framefuse_weights + CHECKSUM_AT, DIGITS))
        return 0;
    snprintf(digits, sizeof digits, "%08x", (unsigned)checksum(data + WEIGHTS_HEAD, WEIGHTS_BYTES - WEIGHTS_HEAD));
    return memcmp(data + CHECKSUM_AT, digits, DIGITS) == 0;
}

static int is_same(const weights_file *one, const weights_file *other) {
    return other->data != NULL && one->device == other->device && one->number == other->number &&
           one->changed.tv_sec == other->changed.tv_sec && one->changed.tv_nsec == other->changed.tv_nsec;
}

/* The file in memory; without data, and the reason in `error`, where it is not one for this program. */
static weights_file mapped(const char *path, char *error, size_t size) {
    weights_file none = {0};
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about)) {
        snprintf(error, size, "the weights cannot be read from %s: %s", path, strerror(errno));
        if (file >= 0)
            close(file);
        return none;
    }
    char *data = MAP_FAILED;
    int fits = S_ISREG(about.st_mode) && about.st_size == WEIGHTS_BYTES;
    if (fits)
        data = mmap(NULL, WEIGHTS_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (fits && data == MAP_FAILED) {
        snprintf(error, size, "the weights in %s cannot be mapped: %s", path, strerror(errno));
        return none;
    }
    if (!fits || !is_alike(data)) {
        snprintf(error, size, "%s does not hold the weights of this program, by their names and sizes, or is damaged",
                 path);
        if (fits)
            munmap(data, WEIGHTS_BYTES);
        return none;
    }
    return (weights_file){data, about.st_dev, about.st_ino, about.st_mtim};
}

/* The first file is shared by all models; one with another file has panels of its own. */
static const char *weights_of(framefuse_model *model, const char *given, char *error, size_t size) {
    char *found = given ? NULL : beside_library();
    const char *path = given ? given : found;
    weights_file file = {0};
    if (path == NULL)
        snprintf(error, size, "the folder of the library is not known: give framefuse_load_with the path of %s", WEIGHTS_FILE);
    else
        file = mapped(path, error, size);
    if (file.data != NULL) {
        pthread_mutex_lock(&packing);
        int known = is_same(&file, &shared_file);
        pthread_mutex_unlock(&packing);
        if (!known && !is_whole(file.data, found != NULL)) {
            snprintf(error, size, "%s is damaged%s: its checksum is another. Copy it anew, or export it again", path,
                     found ? ", or of another export" : "");
            drop_file(&file);
        }
    }
    free(found);
    if (file.data == NULL)
        return NULL;
    pthread_mutex_lock(&packing);
    if (shared_file.data == NULL)
        shared_file = file;
    else if (is_same(&file, &shared_file)) {
        drop_file(&file);
        file = shared_file;
    } else {
        model->file = file;
        model->replaced = 1;
    }
    pthread_mutex_unlock(&packing);
    return file.data;
}

#else

static const char *weights_of(framefuse_model *model, const char *given, char *error, size_t size) {
    (void)model;
    if (given != NULL)
        snprintf(error, size, "the library holds its weights, and takes no file of them");
    return given ? NULL : framefuse_weights;
}

#endif
