#!/bin/sh
# Task k examines the numbers 60k+1 to 60k+60 and prints the one with the most Collatz steps until 1:
# halve the number if it is even, else triple it and add one.
n=$((ROTA_INDEX * 60 + 1)) last=$((ROTA_INDEX * 60 + 60)) most=0 found=0
while [ $n -le $last ]; do
    x=$n steps=0
    while [ $x -ne 1 ]; do
        if [ $((x % 2)) -eq 0 ]; then x=$((x / 2)); else x=$((3 * x + 1)); fi
        steps=$((steps + 1))
    done
    if [ $steps -gt $most ]; then most=$steps found=$n; fi
    n=$((n + 1))
done
echo "$most steps from $found"
