module difyrt

go 1.26.5
