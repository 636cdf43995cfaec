/* Makes the objects of a file of records. */
#ifndef FRAMEFUSE_RECORDS_H
#define FRAMEFUSE_RECORDS_H

#include "base.h"

/* read_records(rows, records, constants, root): the object of the record, or constant, of that number. A record is the
   number of a row and the numbers of its parts: of records before it from 0 on, of constants from -1 down. A row is
   (make, how): make takes the parts as one list (how is None), or each (True); where how is a tuple of slots of the
   class make, they are filled without a call. */
PyObject *read_records_py(PyObject *self, PyObject *args);

#endif
