#!/usr/bin/env python3
"""Writes a GGUF model again with every tensor as float: to_f32.py IN.gguf OUT.gguf

llama.cpp quantises activations to 8 bits before it multiplies them with quantised weights. With float
weights of the very same values it does not, and can be compared closely.
"""

import sys

import gguf
import numpy as np

# The writer has its own of these.
SKIPPED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader = gguf.GGUFReader(sys.argv[1])
    writer = gguf.GGUFWriter(sys.argv[2], reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(SKIPPED):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
