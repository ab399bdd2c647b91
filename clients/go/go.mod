module sanderling

go 1.21
