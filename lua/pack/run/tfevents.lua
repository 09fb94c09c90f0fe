--- TensorBoard's event files: records with checksums, each a protobuf message of a few scalars.
--
-- A record is its length (u64), the masked CRC-32C of these bytes, the message, and the masked CRC-32C of it, all
-- little-endian, as the hosts are (tensorflow/core/lib/io/record_writer.h). The messages are Event and Summary of
-- tensorflow/core/util/event.proto and framework/summary.proto.
local bit = require "bit"
local ffi = require "ffi"

local tfevents = {}

-- Checksums --------------------------------------------------------------------------------------

local POLYNOMIAL = 0x82f63b78 -- Castagnoli's, its bits reversed

local crc_table = ffi.new("uint32_t[256]")
for byte = 0, 255 do
  local x = byte
  for _ = 1, 8 do
    x = bit.bxor(bit.rshift(x, 1), bit.band(x, 1) == 1 and POLYNOMIAL or 0)
  end
  crc_table[byte] = x
end

--- The CRC-32C of a string, a number from 0 to 2^32 - 1.
function tfevents.crc32c(text)
  local bytes, x = ffi.cast("const uint8_t *", text), -1
  for i = 0, #text - 1 do
    x = bit.bxor(bit.rshift(x, 8), crc_table[bit.band(bit.bxor(x, bytes[i]), 0xff)])
  end
  return bit.bnot(x) % 2 ^ 32
end

-- The checksum as records have it: turned and moved, so that sums over data with sums stay good ones.
local function masked(text)
  local x = tfevents.crc32c(text)
  return (bit.ror(x, 15) % 2 ^ 32 + 0xa282ead8) % 2 ^ 32
end

-- Numbers ----------------------------------------------------------------------------------------

local f64, f32, u64, u32 = ffi.new("double[1]"), ffi.new("float[1]"), ffi.new("uint64_t[1]"), ffi.new("uint32_t[1]")

local function bytes_of(cell, x, count)
  cell[0] = x
  return ffi.string(cell, count)
end

-- A whole number from 0 to 2^53 in groups of 7 bits, the lowest first.
local function varint(x)
  local bytes = {}
  while x >= 128 do
    bytes[#bytes + 1] = string.char(x % 128 + 128)
    x = math.floor(x / 128)
  end
  bytes[#bytes + 1] = string.char(x)
  return table.concat(bytes)
end

-- Messages ---------------------------------------------------------------------------------------

-- Fields of a message by their number (at most 15) and kind.
local VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

local function key(number, kind)
  return string.char(number * 8 + kind)
end

local function bytes_field(number, content)
  return key(number, BYTES) .. varint(#content) .. content
end

-- A field that is 0 is left out.
local function event(time, step, what)
  return key(1, FIXED64) .. bytes_of(f64, time, 8) .. (step > 0 and key(2, VARINT) .. varint(step) or "") .. what
end

--- The event that begins a file.
function tfevents.version(time)
  return event(time, 0, bytes_field(3, "brain.Event:2"))
end

--- The event that begins a process which goes on at `step`: what earlier files have from there on no longer counts.
function tfevents.start(time, step)
  return event(time, step, bytes_field(7, key(1, VARINT) .. varint(1)))
end

--- Scalars at a step, a list of {tag, value}; values are kept as f32.
function tfevents.scalars(time, step, list)
  local parts = {}
  for i, scalar in ipairs(list) do
    parts[i] = bytes_field(1, bytes_field(1, scalar[1]) .. key(2, FIXED32) .. bytes_of(f32, scalar[2], 4))
  end
  return event(time, step, bytes_field(5, table.concat(parts)))
end

--- A message as a record.
function tfevents.record(message)
  local length = bytes_of(u64, #message, 8)
  return length .. bytes_of(u32, masked(length), 4) .. message .. bytes_of(u32, masked(message), 4)
end

return tfevents
