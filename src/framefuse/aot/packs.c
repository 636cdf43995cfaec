/* Weights as panels, and what is computed of weights alone: packed when a model first multiplies by them, and shared by
 * all models whose weights these are.
 * Panels that are there stay as they are until the last model is freed, so that readers need no lock. */

typedef struct pack { const void *data; int64_t shape[10]; void *panels; } pack;

static pack shared_packs[PACKS + 1];
static derived_values shared_derived;
static pthread_mutex_t packing = PTHREAD_MUTEX_INITIALIZER;
static int models;
static weights_file shared_file;

static void drop_packs(pack *packs)
{
    for (int k = 0; packs && k < PACKS; k++) {
        free(packs[k].panels);
        packs[k] = (pack){0};
    }
}

static void drop_derived(derived_values *known)
{
    for (int k = 0; k < DERIVED; k++)
        free(known->values[k]);
    *known = (derived_values){0};
}

#ifndef WEIGHTS_FILE
#define WEIGHTS_BYTES 0
#endif

static void drop_file(weights_file *file)
{
    if (file->data != NULL)
        munmap((void *)file->data, WEIGHTS_BYTES);
    *file = (weights_file){0};
}

static void count_model(int change)
{
    pthread_mutex_lock(&packing);
    models += change;
    if (models == 0) {
        drop_packs(shared_packs);
        drop_derived(&shared_derived);
        drop_file(&shared_file);
    }
    pthread_mutex_unlock(&packing);
}
