--- UTF-8: lengths of sequences and the repair of text that is not.
local utf8 = {}

--- The length of the UTF-8 sequence at byte i, or nil if there is none (Unicode 15, table 3-7).
function utf8.sequence_length(text, i)
  local lead, second = text:byte(i, i + 1)
  if lead < 0x80 then return 1 end
  local length = lead >= 0xf0 and 4 or lead >= 0xe0 and 3 or 2
  if lead < 0xc2 or lead > 0xf4 or i + length - 1 > #text then return nil end
  local low = lead == 0xe0 and 0xa0 or lead == 0xf0 and 0x90 or 0x80
  local high = lead == 0xed and 0x9f or lead == 0xf4 and 0x8f or 0xbf
  if second < low or second > high then return nil end
  for k = i + 2, i + length - 1 do
    local byte = text:byte(k)
    if byte < 0x80 or byte > 0xbf then return nil end
  end
  return length
end

--- The text with U+FFFD for each byte that is not UTF-8, such as half a character of generated text.
function utf8.clean(text)
  if not text:find("[\128-\255]") then return text end
  local pieces, i = {}, 1
  while i <= #text do
    local length = utf8.sequence_length(text, i)
    pieces[#pieces + 1] = length and text:sub(i, i + length - 1) or "\239\191\189"
    i = i + (length or 1)
  end
  return table.concat(pieces)
end

--- A text with control characters, but for tabs and ends of lines, as "?", and U+FFFD for bytes that are not UTF-8:
-- names of files and made-up bytes could set a terminal's modes.
function utf8.printable(text)
  if not text:find("[%z\1-\8\11-\31\127-\255]") then return text end
  return (utf8.clean(text):gsub("[%z\1-\8\11-\31\127]", "?"):gsub("\194[\128-\159]", "?"))
end

return utf8
