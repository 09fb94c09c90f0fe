--- The version of packlua. The build reads this line, so that library and program state the same.
return "0.1.0"
