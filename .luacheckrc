std = "luajit"
max_line_length = 140
include_files = {"lua/**/*.lua", "recipes/**/*.lua", "configs/**/*.lua", "spec/**/*.lua"}
exclude_files = {"spec/fixtures", "spec/fuzz/seeds"}
ignore = {"581"} -- not (x <= y) is not x > y where x may be NaN
files["spec"] = {std = "+busted"}
