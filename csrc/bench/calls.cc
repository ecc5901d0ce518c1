// The C++ side of bench/calls: the calls that it times, with libtorch alone. Reads lines "<case> <count>", and answers
// each with the nanoseconds that one of count calls took.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <string>

int main() {
  at::set_num_threads(1);
  const at::Tensor x = at::full({1}, 1.0), y = at::full({1}, 1.0), w = at::full({1}, 1.0).requires_grad_();
  at::Tensor out = at::full({1}, 1.0);
  const std::map<std::string, std::function<void(int64_t)>> cases{
      {"mul", [&](int64_t n) { while (n-- > 0) at::mul(x, y); }},
      {"freed", [&](int64_t n) { while (n-- > 0) at::mul(x, y); }},
      {"scalar", [&](int64_t n) { while (n-- > 0) at::mul(x, 1.0); }},
      {"inplace", [&](int64_t n) { while (n-- > 0) out.mul_(y); }},
      {"recorded", [&](int64_t n) { while (n-- > 0) at::mul(w, y); }},
      {"chain", [&](int64_t n) {
         for (; n > 0; n -= 4) {
           at::Tensor t = at::mul(x, y);
           t = at::add(t, x);
           t = at::exp(t);
           t = at::sub(t, y);
         }
       }},
  };
  for (std::string name; std::cin >> name;) {
    int64_t count = 0;
    std::cin >> count;
    const auto run = cases.find(name);
    if (run == cases.end() || count <= 0) {
      std::cerr << "calls: no case " << name << " of " << count << " calls\n";
      return 1;
    }
    const auto start = std::chrono::steady_clock::now();
    run->second(count);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    std::cout << took.count() / static_cast<double>(count) << std::endl;
  }
  return 0;
}
