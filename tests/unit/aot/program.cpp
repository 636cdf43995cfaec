// Runs a linked program from C++: prints its first result, then the text of an error.
#include "framefuse.hpp"

#include <cstdio>

int main()
{
    framefuse::model model(2);
    std::vector<float> numbers(32);
    for (size_t k = 0; k < numbers.size(); k++)
        numbers[k] = float(k % 17) / 8 - 1;
    framefuse::view<const float> input(numbers.data(), {2, 16});
    auto results = model(input);
    for (int64_t k = 0; k < results[0].size(); k++)
        std::printf("%.9g\n", results[0].data<float>()[k]);
    float bias[4] = {1, 2, 3, 4};
    model.update_constant("2.bias", framefuse::view<float>(bias, {4}));
    try {
        model(framefuse::view<const double>(nullptr, {2, 16}));
    } catch (const framefuse::error &problem) {
        std::fprintf(stderr, "%s\n", problem.what());
    }
}
